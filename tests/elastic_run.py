"""Train for test_elastic.py, on several numbers of processes.

    python tests/elastic_run.py FOLDER NAME STOP

FOLDER holds `model` and `tokenizer`; checkpoints go to FOLDER/NAME.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from distributed_step import RecordingTrainer, make_trainer
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.system.processes import leave_process_group


VIRTUAL_RANKS = 8
STEPS = 5
STEPS_AN_EPOCH = 3
BUDGETS = {"source_tokens": 80, "target_tokens": 130}  # global batches of 10 sentences


class StopAfter(TrainerCallback):
    """Ends a training early, as an interruption does: nothing else knows of it."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


def elastic_trainer(folder: Path, output_dir: Path, **overrides: Any) -> RecordingTrainer:
    model = VaswaniForConditionalGeneration.from_pretrained(folder / "model", dropout=0.1)
    settings = {"virtual_ranks": VIRTUAL_RANKS, "max_steps": STEPS, "save_strategy": "steps", "save_steps": 2}
    tokenizer = VaswaniTokenizer.from_pretrained(folder / "tokenizer")
    return make_trainer(model, tokenizer, output_dir, **{**BUDGETS, **settings, **overrides})


def train_on(folder: Path, name: str, stop: int = STEPS) -> None:
    """Train from the last checkpoint, if there is one; every rank leaves its findings in `name-RANK.pt`."""
    output_dir = folder / name
    trainer = elastic_trainer(folder, output_dir, callbacks=[StopAfter(stop)])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(output_dir) if output_dir.is_dir() else None)
    findings = {
        "weights": trainer.model.state_dict(),
        "logs": trainer.state.log_history,
        "target_tokens": trainer.totals.target_tokens,
        "operations": trainer.state.total_flos,
        "world_size": trainer.args.world_size,
    }
    torch.save(findings, folder / f"{name}-{os.environ.get('RANK', 0)}.pt")


if __name__ == "__main__":
    train_on(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    leave_process_group()
