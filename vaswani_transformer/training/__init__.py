"""Sections 5.2 to 5.4 and 6.1 of the paper: schedule, loss, checkpoint averaging and the trainer.

Four files detect faults: `watchdog.py` notices lost ranks, `processes.py` raises the error of one rank on all,
`divergence.py` finds numbers that are not finite, and `interruption.py` handles signals. `faults.py` then ends the
program with one line and an exit status. `checkpoints.py` and `run_directory.py` make it safe to resume.
"""

from .averaging import CheckpointAveraging, average_checkpoints
from .callbacks import EarlyStopping, OpenTracker, TimeLimit, TrainingProgress, TrainingTotals
from .checkpoints import newest_complete_checkpoint
from .divergence import DivergenceError, DivergenceGuard
from .faults import AlreadyTrainedError, faults_in_one_line, joined_processes
from .interruption import Interrupted, Interruption
from .loss import LabelSmoothedLoss
from .memory import keep_freed_memory
from .processes import join_process_group, leave_process_group
from .randomness import SeedByRank
from .schedule import NoamSchedule, noam_learning_rate
from .trainer import VaswaniTrainer, VaswaniTrainingArguments
from .validation_bleu import ValidationBleu
from .watchdog import Watchdog


__all__ = [
    "AlreadyTrainedError",
    "CheckpointAveraging",
    "DivergenceError",
    "DivergenceGuard",
    "EarlyStopping",
    "Interrupted",
    "Interruption",
    "LabelSmoothedLoss",
    "NoamSchedule",
    "OpenTracker",
    "SeedByRank",
    "TimeLimit",
    "TrainingProgress",
    "TrainingTotals",
    "ValidationBleu",
    "VaswaniTrainer",
    "VaswaniTrainingArguments",
    "Watchdog",
    "average_checkpoints",
    "faults_in_one_line",
    "join_process_group",
    "joined_processes",
    "keep_freed_memory",
    "leave_process_group",
    "newest_complete_checkpoint",
    "noam_learning_rate",
]
