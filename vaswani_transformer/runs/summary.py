"""What a training prints at its beginning."""

from collections.abc import Mapping

from ..data.training_data import TrainingData
from ..training.trainer import VaswaniTrainer


def steps_per_epoch(trainer: VaswaniTrainer) -> int:
    """Optimizer steps of an epoch."""
    return len(trainer.batch_sampler) // trainer.batch_sampler.num_parts


def show_plan(trainer: VaswaniTrainer, data: TrainingData) -> None:
    """Print the sizes of corpora, model and epoch."""
    args = trainer.args
    print(_describe_cleaning(data.cleaning))
    for name, corpus in data.mixed.items():
        print(f"{name}: {_describe_cleaning(corpus.cleaning)}; {corpus.drawn:,} drawn per epoch")
    print(
        f"{trainer.model.num_parameters():,} parameters\n"
        f"{steps_per_epoch(trainer):,} steps an epoch, of at most {args.source_tokens:,} source and "
        f"{args.target_tokens:,} target tokens, {trainer.batch_sampler.padding_share:.1%} of them padding",
        flush=True,
    )


def _describe_cleaning(cleaning: Mapping[str, int]) -> str:
    """Number of sentence pairs kept, and dropped by reason."""
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in cleaning.items() if reason != "kept")
    return f"{cleaning['kept']:,} sentence pairs (dropped: {dropped})"
