"""Sections 5.2 to 5.4 and 6.1 of the paper: schedule, loss, checkpoint averaging and the trainer."""

from ..io.lazy_names import lazy_names


__all__, __getattr__ = lazy_names(
    __name__,
    {
        "CheckpointAveraging": "averaging",
        "DivergenceError": "divergence",
        "DivergenceGuard": "divergence",
        "EarlyStopping": "callbacks",
        "LabelSmoothedLoss": "loss",
        "NoamSchedule": "schedule",
        "SeedByRank": "randomness",
        "TimeLimit": "callbacks",
        "TrainingProgress": "callbacks",
        "VaswaniTrainer": "trainer",
        "VaswaniTrainingArguments": "trainer",
        "average_checkpoints": "averaging",
        "newest_complete_checkpoint": "checkpoints",
        "noam_learning_rate": "schedule",
    },
)
