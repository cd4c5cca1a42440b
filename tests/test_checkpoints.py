"""Checkpoints are complete or absent, and a damaged one is never used."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed_step import DROPOUT, assert_equal_weights, make_model, make_trainer
from transformers.trainer_utils import get_last_checkpoint

from vaswani_transformer import (
    CheckpointAveraging,
    VaswaniForConditionalGeneration,
    VaswaniTokenizer,
    VaswaniTrainer,
)
from vaswani_transformer.system.files import publish
from vaswani_transformer.system.manifests import MODEL_FILES, Manifest, find_damage
from vaswani_transformer.training import checkpoints
from vaswani_transformer.training.checkpoints import checkpoint_damage, newest_complete_checkpoint


pytestmark = pytest.mark.system
LAST = 6  # steps of the training, which saves every second one
FILES = (
    "manifest.json",
    "model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "tokenizer.json",
    "trainer_state.json",
)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = [(damage, file) for damage in (Path.unlink, flip_a_byte) for file in FILES]
DAMAGES += [(damage, "config.json") for damage in (Path.unlink, truncate)]  # which the manifest omits


@pytest.fixture(scope="module")
def train(tokenizer: VaswaniTokenizer) -> Callable[..., Any]:
    """Trains a tiny model with dropout; returns the trainer."""

    def train(output_dir: Path, resume: str | bool | None = None, **overrides: Any) -> Any:
        settings = {"max_steps": LAST, "save_strategy": "steps", "save_steps": 2, "disable_tqdm": True, **overrides}
        trainer = make_trainer(make_model(DROPOUT), tokenizer, output_dir, **settings)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train


@pytest.fixture(scope="module")
def finished(train: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The directory of an undisturbed training, and its average."""
    output_dir = tmp_path_factory.mktemp("undisturbed")
    trainer = train(output_dir, callbacks=[CheckpointAveraging(2)])
    return output_dir, trainer.model.state_dict()


@pytest.fixture
def copied(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings that the package has logged, but for the one of a short training."""
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("vaswani_transformer.training") and "warmup_steps" not in record.getMessage()
    ]


def names(output_dir: Path) -> list[str]:
    return sorted(path.name for path in output_dir.iterdir() if path.is_dir())


@pytest.mark.parametrize(("damage", "file"), DAMAGES)
def test_a_damaged_checkpoint_is_skipped_by_name(copied, file, damage, warnings):
    damage(copied / "checkpoint-6" / file)
    assert newest_complete_checkpoint(copied) == copied / "checkpoint-4"
    (warning,) = warnings()
    assert str(copied / "checkpoint-6") in warning
    assert file in warning
    assert len(warning.splitlines()) == 1


def test_a_checkpoint_of_adapters_is_complete_with_their_configuration(copied):
    """PEFT saves no config.json, and adapters of a name in a folder of their own."""
    for directory, adapters in ((copied / "checkpoint-4", "."), (copied / "checkpoint-6", "named")):
        (directory / "config.json").unlink()
        (directory / adapters).mkdir(exist_ok=True)
        (directory / "model.safetensors").rename(directory / adapters / "adapter_model.safetensors")
        (directory / adapters / "adapter_config.json").write_text("{}", encoding="utf-8")
        Manifest.from_files(directory).save(directory)
    assert newest_complete_checkpoint(copied) == copied / "checkpoint-6"
    flip_a_byte(copied / "checkpoint-6" / "named" / "adapter_model.safetensors")
    assert newest_complete_checkpoint(copied) == copied / "checkpoint-4"
    (copied / "checkpoint-4" / "adapter_config.json").unlink()
    assert newest_complete_checkpoint(copied) == copied / "checkpoint-2"


def test_a_damaged_checkpoint_is_refused_when_it_is_named(copied, train):
    flip_a_byte(copied / "checkpoint-4" / "optimizer.pt")
    with pytest.raises(ValueError, match=r"/checkpoint-4: cannot be resumed from, optimizer\.pt"):
        train(copied, str(copied / "checkpoint-4"))


def test_without_an_optimizer_nothing_is_resumed(tmp_path, train, warnings):
    train(tmp_path, save_only_model=True, max_steps=2)
    assert newest_complete_checkpoint(tmp_path) is None
    (warning,) = warnings()
    assert "saved without scheduler.pt (save_only_model)" in warning


class Disk:
    """Fails, as a full disk does, while the random state of a step is written, and notes what readers see then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        write = VaswaniTrainer._save_rng_state

        def write_or_fail(trainer: Any, output_dir: str) -> None:
            if trainer.state.global_step == step:
                self.seen = names(Path(trainer.args.output_dir)), get_last_checkpoint(trainer.args.output_dir)
                raise OSError(errno.ENOSPC, "No space left on device")
            write(trainer, output_dir)

        monkeypatch.setattr(VaswaniTrainer, "_save_rng_state", write_or_fail)


@pytest.mark.parametrize(("step", "earlier"), [(4, ["checkpoint-2"]), (6, ["checkpoint-2", "checkpoint-4"])])
def test_a_full_disk_leaves_the_earlier_checkpoints(tmp_path, train, finished, monkeypatch, step, earlier):
    with monkeypatch.context() as patch:
        disk = Disk(patch, step)
        with pytest.raises(OSError, match=rf"/checkpoint-{step}: could not be written: .*No space left"):
            train(tmp_path, callbacks=[CheckpointAveraging(2)], save_total_limit=2)
    assert disk.seen == (["_incomplete", *earlier], str(tmp_path / earlier[-1]))
    assert names(tmp_path) == earlier
    assert [checkpoint_damage(tmp_path / name) for name in earlier] == [None] * len(earlier)
    resumed = train(tmp_path, True, callbacks=[CheckpointAveraging(2)], save_total_limit=2)
    assert_equal_weights(resumed.model.state_dict(), finished[1])
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-6"]


def test_resuming_replaces_a_damaged_checkpoint_and_removes_an_interrupted_save(copied, train, finished, warnings):
    unfinished = copied / "_incomplete" / "checkpoint-8"
    shutil.copytree(copied / "checkpoint-6", unfinished, ignore=shutil.ignore_patterns("manifest.json"))
    flip_a_byte(copied / "checkpoint-6" / "model.safetensors")
    resumed = train(copied, True, callbacks=[CheckpointAveraging(2)])
    assert_equal_weights(resumed.model.state_dict(), finished[1])
    assert f"{copied}/checkpoint-8: incomplete: training stopped while it was being written; ignored" in warnings()
    assert names(copied) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert checkpoint_damage(copied / "checkpoint-6") is None


def test_a_resumed_training_saves_and_logs_as_its_options_say(copied, train):
    (copied / "checkpoint-6").rename(copied / "elsewhere")
    resumed = train(copied, True, save_steps=1, logging_steps=1, callbacks=[CheckpointAveraging(2)])
    assert names(copied) == ["checkpoint-2", "checkpoint-4", "checkpoint-5", "checkpoint-6", "elsewhere"]
    assert [entry["step"] for entry in resumed.state.log_history if "loss" in entry][-2:] == [5, 6]


# Averaging.


def test_the_average_does_without_damaged_weights(copied, train, warnings):
    flip_a_byte(copied / "checkpoint-4" / "model.safetensors")
    averaging = CheckpointAveraging(3)
    train(copied, True, callbacks=[averaging], max_steps=8)
    assert [directory.name for directory in averaging.averaged] == [f"checkpoint-{step}" for step in (2, 6, 8)]
    assert warnings() == [
        f"{copied}/checkpoint-4: left out of the average, model.safetensors has changed since it was written"
    ]


# Deleting.


def test_a_model_that_was_half_replaced_is_noticed(copied, monkeypatch):
    model, staged = copied / "model", copied / "staged"
    for folder, content in ((model, "old"), (staged, "new")):
        folder.mkdir()
        for name in ("tokenizer.json", "model.safetensors"):
            (folder / name).write_text(content, encoding="utf-8")
        Manifest.from_files(folder, MODEL_FILES).save(folder)

    def publish_until_the_weights(path: Path, destination: Path) -> None:
        if path.suffix == ".safetensors":
            raise KeyboardInterrupt
        publish(path, destination)

    monkeypatch.setattr(checkpoints, "publish", publish_until_the_weights)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.publish_files(staged, model)
    assert find_damage(model) is not None


def test_the_best_checkpoint_and_those_of_another_training_stay(finished, train, tmp_path):
    shutil.copytree(finished[0] / "checkpoint-6", tmp_path / "checkpoint-100")
    metric = {"metric_for_best_model": "loss", "greater_is_better": True, "eval_strategy": "steps", "eval_steps": 2}
    trainer = train(tmp_path, max_steps=8, save_total_limit=2, **metric)
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    best = max(losses, key=losses.get)
    assert best < 6, "else it would stay as one of the last"
    state = json.loads((tmp_path / "checkpoint-8" / "trainer_state.json").read_text(encoding="utf-8"))
    assert trainer.state.best_model_checkpoint == state["best_model_checkpoint"] == str(tmp_path / f"checkpoint-{best}")
    assert names(tmp_path) == ["checkpoint-100", f"checkpoint-{best}", "checkpoint-8"]


# The finished model.


def test_an_interrupted_save_leaves_the_earlier_model(copied, train, monkeypatch):
    trainer = train(copied, True, max_steps=7)
    trainer.save_model()
    files = {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    trainer.model.get_input_embeddings().weight.data += 1
    with monkeypatch.context() as patch:
        patch.setattr(trainer.processing_class, "save_pretrained", lambda *_: pytest.fail("interrupted"))
        with pytest.raises(pytest.fail.Exception, match="interrupted"):
            trainer.save_model()
    assert {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()} == files
    trainer.save_model()
    saved = VaswaniForConditionalGeneration.from_pretrained(copied)
    assert_equal_weights(saved.state_dict(), trainer.model.state_dict())
    assert "_incomplete" not in names(copied)
