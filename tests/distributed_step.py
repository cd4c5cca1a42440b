"""Train for test_trainer.py on one process and, by torchrun, on two, to compare them.

    torchrun --nproc_per_node 2 tests/distributed_step.py FOLDER

FOLDER holds `model` and `tokenizer`; each process leaves its findings there, in `rank-0.pt` and `rank-1.pt`.
"""

import os
import random
import shutil
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback

from vaswani_transformer import (
    CheckpointAveraging,
    NoamSchedule,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniTokenizer,
    VaswaniTrainer,
)
from vaswani_transformer.options.training import VaswaniTrainingArguments
from vaswani_transformer.runs.run_directory import open_run
from vaswani_transformer.system.manifests import Manifest
from vaswani_transformer.system.processes import leave_process_group
from vaswani_transformer.training import averaging, callbacks, trainer
from vaswani_transformer.training.callbacks import TimeLimit
from vaswani_transformer.training.divergence import DivergenceError
from vaswani_transformer.training.elastic import ElasticTrainer
from vaswani_transformer.training.loss import LabelSmoothedLoss
from vaswani_transformer.training.schedule import WarmupCooldown


Model = VaswaniForConditionalGeneration
NUM_ROWS = 30
EPOCHS = 2
STEPS_AN_EPOCH = 5  # of the rows and token budgets below
RESUME_FROM = 8  # in the middle of the second
DROPOUT = EPSILON = 0.1
NUM_EVAL_ROWS = 7
EVAL_BATCHES = (1, 3, 8)  # on one process or two, some of the last are short


def make_model(dropout: float = 0.0) -> Model:
    """A model whose weights are so large that sums in another order differ in their bits."""
    torch.manual_seed(0)
    widths = {"d_model": 24, "d_ff": 40, "num_heads": 4, "d_k": 5, "d_v": 7}
    config = VaswaniConfig(vocab_size=37, encoder_layers=1, decoder_layers=2, label_smoothing=EPSILON, **widths)
    config.dropout = dropout
    return Model(config)


def make_rows() -> list[dict[str, list[int]]]:
    """Sentence pairs of very unequal lengths, some of them equal; a source begins with 3 + the number of its row."""
    numbers = random.Random(1)

    def tokens(length: int) -> list[int]:
        return [numbers.randrange(3, 37) for _ in range(length)]

    return [
        {"input_ids": [3 + row, *tokens(row % 5), 1], "labels": [*tokens(1 + (7 * row) % 10), 1]}
        for row in range(NUM_ROWS)
    ]


def assert_equal_weights(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


class Recording:
    """Notes every micro-batch that a trainer trains on, by epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: dict[int, list[dict[str, torch.Tensor]]] = defaultdict(list)

    def training_step(self, model: Any, inputs: dict[str, torch.Tensor], *args: Any) -> torch.Tensor:
        for batch in inputs if isinstance(inputs, list) else [inputs]:
            self.batches[int(self.state.epoch or 0)].append({name: tensor.clone() for name, tensor in batch.items()})
        return super().training_step(model, inputs, *args)

    def rows_by_epoch(self) -> dict[int, list[list[int]]]:
        """Row numbers of the micro-batches of each epoch."""
        return {
            epoch: [(batch["input_ids"][:, 0] - 3).tolist() for batch in batches]
            for epoch, batches in self.batches.items()
        }


class RecordingTrainer(Recording, VaswaniTrainer):
    pass


class RecordingElasticTrainer(Recording, ElasticTrainer):
    pass


def make_trainer(model: Model, tokenizer: VaswaniTokenizer, output_dir: Path, **overrides: Any) -> RecordingTrainer:
    """A trainer of `STEPS_AN_EPOCH` global batches an epoch, whose every detail can be overridden."""
    callbacks = overrides.pop("callbacks", [])
    dataset = overrides.pop("train_dataset", Dataset.from_list(make_rows()))
    mixed = overrides.pop("mixed", ())
    settings = {
        "source_tokens": 50,
        "target_tokens": 60,
        "num_train_epochs": EPOCHS,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        **overrides,
    }
    args = VaswaniTrainingArguments(str(output_dir), **settings)
    return (RecordingTrainer if args.virtual_ranks is None else RecordingElasticTrainer)(
        model,
        args,
        mixed=mixed,
        train_dataset=dataset,
        eval_dataset=Dataset.from_list(make_rows()[:NUM_EVAL_ROWS]),
        processing_class=tokenizer,
        callbacks=[NoamSchedule(4), *callbacks],
    )


class GradientRecorder(TrainerCallback):
    """Keeps the gradients that the optimizer is about to apply."""

    def on_pre_optimizer_step(self, *args: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        self.gradients = {name: weights.grad.clone() for name, weights in model.named_parameters()}


def evaluate(model: Model, tokenizer: VaswaniTokenizer, output_dir: Path, size: int, **settings: Any) -> float:
    """The loss that the trainer logs of batches of so many pairs."""
    settings = {"per_device_eval_batch_size": size, "disable_tqdm": True, **settings}
    return make_trainer(model, tokenizer, output_dir, **settings).evaluate()["eval_loss"]


def one_step_gradients(
    model: Model, tokenizer: VaswaniTokenizer, output_dir: Path, accumulation: int
) -> dict[str, torch.Tensor]:
    """The gradients of all rows as one global batch."""
    recorder = GradientRecorder()
    settings = {"source_tokens": 1000, "target_tokens": 1000, "num_train_epochs": 1}
    settings |= {"gradient_accumulation_steps": accumulation, "callbacks": [recorder]}
    trainer = make_trainer(model, tokenizer, output_dir, **settings)
    trainer.train()
    assert trainer.state.global_step == 1
    return recorder.gradients


def train_with_muon(model: Model, tokenizer: VaswaniTokenizer, output_dir: Path) -> dict[str, torch.Tensor]:
    """The weights after three steps of Muon."""
    make_trainer(model, tokenizer, output_dir, muon=True, max_steps=3).train()
    return model.state_dict()


class Clock(TrainerCallback):
    """Replaces the clock that trainings read until `stop`: every step takes so many seconds.

    The process's own clock goes on, by which other threads of the tests wait, such as the Hub's.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 1000.0
        self._set(SimpleNamespace(monotonic=lambda: self.now, process_time=time.process_time))

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.now += self.seconds

    def stop(self) -> None:
        self._set(time)

    def _set(self, clock: Any) -> None:
        for module in (averaging, callbacks, trainer):
            module.time = clock


class MaskRecorder(TrainerCallback):
    """Keeps the dropout mask that the generator would give next, at the beginning of every step."""

    def __init__(self) -> None:
        self.masks: list[torch.Tensor] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())  # a copy, so that the training draws what it would have drawn
        self.masks.append(torch.rand(10_000, generator=generator) < DROPOUT)


def masks_without_states(model: Model, tokenizer: VaswaniTokenizer, folder: Path) -> list[torch.Tensor]:
    """Masks of a training resumed from a checkpoint without these ranks' generators, as one of another number has."""
    checkpoint = folder / "foreign" / f"checkpoint-{RESUME_FROM}"
    if torch.distributed.get_rank() == 0:
        found = folder / "whole" / checkpoint.name
        shutil.copytree(found, checkpoint, ignore=shutil.ignore_patterns("rng_state_*"))
        Manifest.from_files(checkpoint, notes={"step": RESUME_FROM}).save(checkpoint)
    torch.distributed.barrier()
    masks = MaskRecorder()
    make_trainer(model, tokenizer, folder / "foreign", callbacks=[masks]).train(resume_from_checkpoint=str(checkpoint))
    return masks.masks


def train_without_a_shared_disk(model: Model, tokenizer: VaswaniTokenizer, folder: Path) -> dict[str, Any]:
    """Train on two ranks as if each were on a machine of its own; returns the averaged weights, and what is refused."""
    directory, index = folder / f"machine-{torch.distributed.get_rank()}", os.environ["LOCAL_RANK"]
    os.environ["LOCAL_RANK"] = "0"  # read when training arguments are made
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    trainer = make_trainer(model, tokenizer, directory, callbacks=[CheckpointAveraging(2)], **settings)
    trainer.train()
    found: dict[str, Any] = {"weights": trainer.model.state_dict(), "folder": str(folder)}
    for name, resume in {"newest": True, "named": str(directory / "checkpoint-4")}.items():
        try:
            make_trainer(model, tokenizer, directory, **settings).train(resume_from_checkpoint=resume)
        except ValueError as error:
            found[name] = str(error)
    for name, seed, each_machine in (("shared", "1", False), ("each", index, True)):
        try:
            with open_run(folder / f"{name}-{index}", {"seed": seed}, False, each_machine):
                pass
        except ValueError as error:
            found[name] = str(error)
    os.environ["LOCAL_RANK"] = index
    return found


class OverflowingLoss(LabelSmoothedLoss):
    """A loss whose sum over the tokens overflows in one call; the gradients stay finite."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.calls_before = call

    def __call__(self, outputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.calls_before -= 1
        logits = outputs["logits"]
        if self.calls_before == 0:
            logits = logits + torch.nn.functional.one_hot(torch.tensor(0), logits.shape[-1]) * 3e38
        return super().__call__({"logits": logits}, *args, **kwargs)


def diverge_on_the_last_rank(model: Model, tokenizer: VaswaniTokenizer, folder: Path) -> str | None:
    """Error of this rank in a training whose loss overflows in the third step, on the last rank alone."""
    trainer = make_trainer(model, tokenizer, folder / "diverged", save_strategy="steps", save_steps=2)
    if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
        trainer.compute_loss_func = OverflowingLoss(3)
    try:
        trainer.train()
    except DivergenceError as error:
        return str(error)
    return None


def main(folder: Path) -> None:
    tokenizer = VaswaniTokenizer.from_pretrained(folder / "tokenizer")

    def model(**overrides: Any) -> VaswaniForConditionalGeneration:
        return VaswaniForConditionalGeneration.from_pretrained(folder / "model", **overrides)

    findings: dict[str, Any] = {
        "gradients": {
            accumulation: one_step_gradients(model(), tokenizer, folder / "one", accumulation)
            for accumulation in (1, 2)
        },
        "evaluated": {size: evaluate(model(), tokenizer, folder / "one", size) for size in EVAL_BATCHES},
    }

    # The second process's clock says at every step that it is time to save.
    rank = torch.distributed.get_rank()
    clock, averaging, masks = Clock((60, 3600)[rank]), CheckpointAveraging(2, every_minutes=4), MaskRecorder()
    trainer = make_trainer(
        model(dropout=DROPOUT), tokenizer, folder / "whole", callbacks=[clock, averaging, masks], eval_strategy="epoch"
    )
    trainer.train()
    clock.stop()
    findings |= {
        "world_size": trainer.args.world_size,
        "rows": trainer.rows_by_epoch(),
        "labels": sum(int(batch["labels"].ne(-100).sum()) for side in trainer.batches.values() for batch in side),
        "total_target_tokens": trainer.totals.target_tokens,
        "seconds": (trainer.totals.seconds, trainer.totals.device_seconds),
        "logs": trainer.state.log_history,
        "averaged": [directory.name for directory in averaging.averaged],
        "weights": trainer.model.state_dict(),
        "masks": masks.masks,
    }

    averaging = CheckpointAveraging(2, every_minutes=1000)
    masks = MaskRecorder()
    resumed = make_trainer(model(dropout=DROPOUT), tokenizer, folder / "whole", callbacks=[averaging, masks])
    try:
        resumed.train(resume_from_checkpoint=str(folder / "whole" / f"checkpoint-{RESUME_FROM}"))
        findings["resumed"] = {
            "rows": resumed.rows_by_epoch(),
            "weights": resumed.model.state_dict(),
            "masks": masks.masks,
        }
        findings["without_states"] = masks_without_states(model(dropout=DROPOUT), tokenizer, folder)
    except RuntimeError as error:
        if "tagged with cpu:" not in str(error):
            raise
        findings["resumed"] = None  # what older transformers saves of two processes on CPU, this torch does not load

    # The first process's clock says after its third step that it is time to stop, and in its first that the warm-up,
    # of four steps, is over.
    clock = Clock((600, 1)[rank])
    ends = [clock, TimeLimit(30), WarmupCooldown(4, falls=True, minutes=30)]
    limited = make_trainer(model(), tokenizer, folder / "limited", callbacks=ends)
    limited.train()
    clock.stop()
    findings["limited"] = limited.state.global_step
    logs = limited.state.log_history
    findings["limited_rates"] = [entry["learning_rate"] for entry in logs if "learning_rate" in entry]
    findings["muon"] = train_with_muon(model(), tokenizer, folder / "muon")
    findings["diverged"] = diverge_on_the_last_rank(model(), tokenizer, folder)
    findings["machines"] = train_without_a_shared_disk(model(), tokenizer, folder)
    torch.save(findings, folder / f"rank-{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave_process_group()
