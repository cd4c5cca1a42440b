"""Faults injected into trainings of the recipe: all ranks end with one line, and `--resume` goes on afterwards."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import kill_trials
import pytest
from helpers import TINY, call_recipe, option_words, start_training, write_splits

from vaswani_transformer.training.checkpoints import checkpoint_damage, list_checkpoints


pytestmark = pytest.mark.system
BOUND = 120  # seconds until all ranks must have ended; the timeout below is of 5, but the machine may be busy
SAVE_STEPS = 5
SETTINGS = {
    **TINY,
    "save_steps": SAVE_STEPS,
    "save_total_limit": 3,
    "eval_strategy": "no",
    "disable_tqdm": True,
    "train": ("train.en", "train.de"),
}


class Training:
    """The recipe on a small corpus, on two ranks and without end unless `finish` is called."""

    def __init__(self, folder: Path, output_dir: Path) -> None:
        write_splits(folder, train=300)
        self.folder, self.settings = folder, {**SETTINGS, "output_dir": output_dir}
        self.ranks: list[subprocess.Popen] = []

    def checkpoints(self) -> dict[int, Path]:
        return list_checkpoints(self.settings["output_dir"])

    def start(self, **options: object) -> None:
        """Start two ranks, and wait until they have written a checkpoint."""
        last = max(self.checkpoints(), default=0)
        self.ranks = start_training({**self.settings, "max_steps": 100_000, **options}, 2, self.folder)
        deadline = time.monotonic() + BOUND
        while max(self.checkpoints(), default=0) < last + SAVE_STEPS:
            if any(rank.poll() is not None for rank in self.ranks) or time.monotonic() > deadline:
                pytest.fail("\n".join(self.kill()))
            time.sleep(0.01)

    def kill(self) -> list[str]:
        """Kill what is left; the standard error of each rank."""
        for rank in self.ranks:
            rank.kill()
        return [rank.communicate()[1] for rank in self.ranks]

    def message(self, *statuses: int) -> str:
        """The one line with which the ranks end, without the program's name; `statuses` are those expected, by rank."""
        text, pairs = "", zip(self.ranks, statuses, strict=True)
        for rank, status in sorted(pairs, key=lambda pair: pair[1] == -signal.SIGKILL):
            if status == -signal.SIGKILL:
                rank.kill()  # as a launcher kills one that is stopped, after the others have ended
            text += rank.communicate(timeout=BOUND)[1]
        assert [rank.returncode for rank in self.ranks] == list(statuses), text
        assert "Traceback" not in text, text
        lines = re.findall("^\0?train_wmt.py: (.*)", text, re.MULTILINE)  # PyTorch ends a message of its own with NUL
        assert len(lines) == 1, text
        damages = {step: checkpoint_damage(directory) for step, directory in self.checkpoints().items()}
        assert damages == dict.fromkeys(damages)
        return lines[0]

    def finish(self) -> None:
        """Train on from the newest checkpoint to the end, on one process."""
        step = max(self.checkpoints()) + 1
        call_recipe("train_wmt.py", *option_words({**self.settings, "resume": True, "max_steps": step}))
        assert step in self.checkpoints()
        assert (self.settings["output_dir"] / "all_results.json").exists()


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    monkeypatch.chdir(tmp_path)
    training = Training(tmp_path, tmp_path / "run")
    yield training
    training.kill()


def test_all_ranks_end_when_one_is_stopped(training: Training) -> None:
    training.start(ddp_timeout=5)
    training.ranks[1].send_signal(signal.SIGSTOP)
    message = training.message(1, -signal.SIGKILL)
    assert re.fullmatch(r"another process has ended, is stopped or cut off \(.*; continue with --resume", message)
    assert "(Timed out waiting 5000ms for" in message
    training.finish()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_all_ranks_end_when_the_disk_is_full(training: Training, small_disk: Path) -> None:
    training.settings["output_dir"] = small_disk / "run"
    training.start()
    ballast = small_disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    message = training.message(1, 1)
    assert "No space left on device" in message
    assert "could not be written" in message
    ballast.unlink()
    training.finish()


def test_a_training_killed_in_a_save_ends_in_the_same_bits(tmp_path: Path) -> None:
    """A short form of `make trials`."""
    (line,) = kill_trials.run(kills=1, processes=[1], virtual_ranks=0, seed=0, folder=tmp_path)
    assert "1 kills in saves" in line
