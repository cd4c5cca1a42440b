"""A short form of `make trials`, and what the trials compare."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from kill_trials import STEPS, Outcome, run


pytestmark = pytest.mark.system


def test_killed_trainings_end_in_the_same_bits_on_other_numbers_of_processes(tmp_path: Path) -> None:
    (line,) = run(kills=2, processes=[1, 2], virtual_ranks=8, seed=4, folder=tmp_path)
    assert "1 kills in saves, 1 at random moments" in line


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """What a trial reads of a finished training."""
    checkpoint = tmp_path / "run" / f"checkpoint-{STEPS}"
    checkpoint.mkdir(parents=True)
    lines = [{"step": step, "loss": 1 / step, "grad_norm": 1.0, "learning_rate": 0.1} for step in (1, 2, 3)]
    (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": lines}), encoding="utf-8")
    for directory in (checkpoint, checkpoint.parent):
        (directory / "model.safetensors").write_bytes(b"weights")
    return checkpoint.parent


def flip_average(run: Path) -> None:
    (run / "model.safetensors").write_bytes(b"weightt")


def flip_last(run: Path) -> None:
    (run / f"checkpoint-{STEPS}" / "model.safetensors").write_bytes(b"weightt")


def repeat_line(run: Path) -> None:
    file = run / f"checkpoint-{STEPS}" / "trainer_state.json"
    lines = json.loads(file.read_text(encoding="utf-8"))["log_history"]
    file.write_text(json.dumps({"log_history": [*lines, lines[-1]]}), encoding="utf-8")


def lose_line(run: Path) -> None:
    file = run / f"checkpoint-{STEPS}" / "trainer_state.json"
    lines = json.loads(file.read_text(encoding="utf-8"))["log_history"]
    file.write_text(json.dumps({"log_history": lines[1:]}), encoding="utf-8")


@pytest.mark.parametrize("change", [flip_average, flip_last, repeat_line, lose_line])
def test_a_trial_sees_every_difference(finished: Path, tmp_path: Path, change: Callable[[Path], None]) -> None:
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    assert Outcome.of(other) == Outcome.of(finished)
    change(other)
    assert Outcome.of(other) != Outcome.of(finished)
