"""Seeds of the generators that dropout draws from, one for each rank or virtual rank."""

from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed


def derived_seed(*numbers: int) -> int:
    """A seed of 32 bits for a part of the work, whichever process does it: a hash of non-negative integers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class SeedByRank(TrainerCallback):
    """Seeds the generators of each rank from (seed, rank, step) when training begins.

    The trainer seeds all ranks alike, so that their initial weights are equal. Their dropout masks, however, must be
    independent. When training is resumed, the trainer then loads the generators' states from the checkpoint. A rank for
    which the checkpoint has none, because another number of processes wrote it, keeps its seed from (seed, rank, step).
    One process that starts at step 0 is left as it is.

    `VaswaniTrainer` has it already; the stock trainer takes it as a callback.
    """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if args.world_size > 1 or state.global_step > 0:
            set_seed(derived_seed(args.seed, args.process_index, state.global_step))
