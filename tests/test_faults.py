"""Faults injected into trainings of the recipe: all ranks end with one line, and `--resume` goes on afterwards."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from helpers import TINY_MODEL, start_training, write_pairs

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.training.checkpoints import checkpoint_damage, list_checkpoints


pytestmark = pytest.mark.system
BOUND = 120  # seconds until all ranks must have ended; the timeout below is of 5, but the machine may be busy
SAVE_STEPS = 5
SETTINGS = {
    **TINY_MODEL,
    "source_tokens": 400,
    "target_tokens": 400,
    "warmup_steps": 4,
    "save_steps": SAVE_STEPS,
    "save_total_limit": 3,
    "average_last": 2,
    "logging_steps": 1,
    "eval_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "ddp_timeout": 1000,
    "train": ("train.en", "train.de"),
}


@dataclass
class Training:
    """The recipe on a small corpus, without end unless `max_steps` says otherwise.

    Attributes:
        folder: Holds the corpus.
        output_dir: Holds the checkpoints.
        ranks: Processes of the last start.
    """

    folder: Path
    output_dir: Path
    ranks: list[subprocess.Popen] = field(default_factory=list)

    def start(self, processes: int = 1, **options: object) -> None:
        settings = {**SETTINGS, "output_dir": self.output_dir, "max_steps": 100_000, **options}
        self.ranks = start_training(settings, processes, self.folder)

    def wait_for_checkpoints(self, count: int = 1) -> None:
        """Wait until so many more checkpoints than now have been written."""
        last = max(self.checkpoints(), default=0) + count * SAVE_STEPS
        deadline = time.monotonic() + BOUND
        while max(self.checkpoints(), default=0) < last:
            if any(rank.poll() is not None for rank in self.ranks) or time.monotonic() > deadline:
                pytest.fail("\n".join(self.end()))
            time.sleep(0.01)

    def checkpoints(self) -> dict[int, Path]:
        return list_checkpoints(self.output_dir)

    def end(self) -> list[str]:
        """Kill what is left; the standard error of each rank."""
        for rank in self.ranks:
            rank.kill()
        return [rank.communicate()[1] for rank in self.ranks]

    def message(self, *statuses: int) -> str:
        """The one line with which all ranks end, without the program's name; `statuses` are those expected, by rank."""
        errors = [rank.communicate(timeout=BOUND)[1] for rank in self.ranks]
        assert [rank.returncode for rank in self.ranks] == list(statuses), "\n".join(errors)
        text = "".join(errors)
        assert "Traceback" not in text, text
        lines = re.findall("^\0?train_wmt.py: (.*)", text, re.MULTILINE)  # PyTorch ends a message of its own with NUL
        assert len(lines) == 1, text
        return lines[0]

    def require_intact(self) -> int:
        """Check every checkpoint; the step of the newest."""
        checkpoints = self.checkpoints()
        assert {step: checkpoint_damage(directory) for step, directory in checkpoints.items()} == dict.fromkeys(
            checkpoints
        )
        return max(checkpoints)

    def require_resumable(self, **options: object) -> None:
        """Check the checkpoints, and that `--resume` trains on from the newest to the end."""
        step = self.require_intact()
        self.start(resume=True, max_steps=step + 1, **options)
        (rank,) = self.ranks
        _, errors = rank.communicate(timeout=BOUND)
        assert rank.returncode == 0, errors
        assert step + 1 in self.checkpoints()
        assert (self.output_dir / "all_results.json").exists()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_pairs(phrasebook("train")[:300], *(folder / name for name in SETTINGS["train"]))
    return folder


@pytest.fixture
def training(corpus: Path, tmp_path: Path) -> Iterator[Training]:
    training = Training(corpus, tmp_path / "run")
    yield training
    training.end()


@pytest.mark.parametrize("victim", [0, 1])  # rank 0 serves the store
def test_all_ranks_end_when_one_dies(training: Training, victim: int) -> None:
    training.start(2)
    training.wait_for_checkpoints()
    training.ranks[victim].kill()
    statuses = [1, 1]
    statuses[victim] = -signal.SIGKILL
    message = training.message(*statuses)
    assert message.startswith("another process has ended, is stopped or cut off (")
    assert message.endswith("; continue with --resume")
    training.require_resumable()


@pytest.mark.parametrize("victim", [0, 1])
def test_all_ranks_end_when_one_stops(training: Training, victim: int) -> None:
    training.start(2, ddp_timeout=5)
    training.wait_for_checkpoints()
    training.ranks[victim].send_signal(signal.SIGSTOP)
    other = training.ranks[1 - victim]
    _, errors = other.communicate(timeout=BOUND)
    training.ranks[victim].kill()  # as launchers do; it holds the directory
    (line,) = [line for line in errors.splitlines() if line.startswith("train_wmt.py: ")]
    assert "Traceback" not in errors
    assert other.returncode == 1
    assert "another process has ended, is stopped or cut off (Timed out waiting 5000ms for" in line
    assert line.endswith("; continue with --resume")
    training.require_resumable()


@pytest.mark.parametrize("asked", [0, 1])
def test_a_signal_to_one_rank_ends_all_at_the_same_step(training: Training, asked: int) -> None:
    training.start(2)
    training.wait_for_checkpoints()
    training.ranks[asked].send_signal(signal.SIGTERM)
    assert training.message(143, 143) == "interrupted; continue with --resume"
    last = training.checkpoints()[training.require_intact()]
    assert {path.name for path in last.glob("rng_state_*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    assert not (training.output_dir / "all_results.json").exists()
    training.require_resumable()


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


@pytest.mark.parametrize("processes", [1, 2])
def test_all_ranks_end_when_the_disk_is_full(training: Training, small_disk: Path, processes: int) -> None:
    training.output_dir = small_disk / "run"
    training.start(processes)
    training.wait_for_checkpoints()
    ballast = small_disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    message = training.message(*[1] * processes)
    assert "No space left on device" in message
    assert "could not be written" in message
    ballast.unlink()
    training.require_resumable()
