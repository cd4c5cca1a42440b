"""Faults injected into trainings of the recipe: all ranks end with one line, and `--resume` goes on afterwards."""

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from distributed_step import make_trainer
from helpers import TINY_MODEL, limit_of_files, start_python, start_training, write_pairs
from transformers import TrainerState

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.launch.ending import Ending
from vaswani_transformer.launch.faults import faults_in_one_line
from vaswani_transformer.launch.shared_directory import held_by_all_ranks
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
def test_a_rank_that_dies(training: Training, victim: int) -> None:
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
def test_a_rank_that_stops(training: Training, victim: int) -> None:
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


def test_a_rank_that_survives_the_others_keeps_the_directory(training: Training) -> None:
    training.start(2)
    training.wait_for_checkpoints()
    first, survivor = training.ranks
    survivor.send_signal(signal.SIGSTOP)
    first.kill()
    first.wait(BOUND)
    with pytest.raises(ValueError, match="another process is at work"), held_by_all_ranks(training.output_dir):
        pass
    training.start(resume=True, max_steps=training.require_intact() + 1)
    (resumed,) = training.ranks
    training.ranks.append(survivor)
    assert any("waiting 60 seconds for an earlier training to end" in line for line in resumed.stderr)
    survivor.kill()
    _, errors = resumed.communicate(timeout=BOUND)
    assert resumed.returncode == 0, errors


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


def test_a_signal_while_two_ranks_evaluate(training: Training) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 1}
    for side in ("en", "de"):
        lines = (training.folder / f"train.{side}").read_text(encoding="utf-8").splitlines(keepends=True)
        (training.folder / f"validation.{side}").write_text("".join(lines[:24]), encoding="utf-8")
    options["validation"] = ("validation.en", "validation.de")
    training.start(2, **options)
    training.wait_for_checkpoints()
    training.ranks[1].send_signal(signal.SIGTERM)
    assert training.message(143, 143) == "interrupted; continue with --resume"
    training.require_resumable(**options)
    state = TrainerState.load_from_json(str(training.checkpoints()[training.require_intact()] / "trainer_state.json"))
    evaluated = [line["step"] for line in state.log_history if "eval_loss" in line]
    assert evaluated == [*range(1, state.global_step + 1)]


def test_a_second_signal_does_not_wait_for_the_step(training: Training) -> None:
    training.start(2)
    training.wait_for_checkpoints(2)
    training.ranks[1].send_signal(signal.SIGSTOP)  # so that the step of rank 0 does not end
    training.ranks[0].send_signal(signal.SIGTERM)
    time.sleep(4)  # a signal that follows within three seconds counts as the same
    assert training.ranks[0].poll() is None
    training.ranks[0].send_signal(signal.SIGTERM)
    training.ranks[0].wait(BOUND)
    training.ranks[1].kill()
    assert training.message(143, -signal.SIGKILL) == "interrupted; continue with --resume"
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
def test_a_disk_that_fills_up(training: Training, small_disk: Path, processes: int) -> None:
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
    assert message.endswith("; older checkpoints are intact; continue with --resume")
    ballast.unlink()
    training.require_resumable()


def test_a_limit_of_the_size_of_files(training: Training) -> None:
    training.start()
    training.wait_for_checkpoints()
    resource.prlimit(training.ranks[0].pid, resource.RLIMIT_FSIZE, (1000, 1000))
    message = training.message(1)
    assert "could not be written" in message
    assert message.endswith("; older checkpoints are intact; continue with --resume")
    training.require_resumable()


@pytest.mark.parametrize(("d_model", "entries"), [(128, 400), (8, 1700)])  # weights or tokenizer exceed the limit
def test_a_final_model_that_cannot_be_written(
    tmp_path: Path, capfd: pytest.CaptureFixture, d_model: int, entries: int
) -> None:
    corpus = [sentence for pair in phrasebook("test") for sentence in pair]
    tokenizer = VaswaniTokenizer.train(corpus, vocab_size=entries, show_progress=False)
    sizes = {"d_model": d_model, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    config = VaswaniConfig(vocab_size=400, **sizes)
    trainer = make_trainer(VaswaniForConditionalGeneration(config), tokenizer, tmp_path)
    with pytest.raises(SystemExit) as stop, faults_in_one_line(Ending("train_wmt.py")), limit_of_files(50_000):
        trainer.save_model()
    assert stop.value.code == 1
    message = capfd.readouterr().err.splitlines()[-1]
    assert message.startswith(f"train_wmt.py: {tmp_path}: the model could not be written: ")
    assert message.endswith("File too large (os error 27); older checkpoints are intact; continue with --resume")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_directory_that_cannot_be_written(training: Training, processes: int) -> None:
    training.output_dir = Path("/sys/run")  # not even by root
    training.start(processes)
    message = training.message(*[1] * processes)
    assert message.startswith("output_dir: cannot write into /sys/run")


def test_a_corpus_that_is_gone_is_needed_until_it_is_prepared(training: Training, tmp_path: Path) -> None:
    shutil.copytree(training.folder, tmp_path / "corpus")
    training.folder = tmp_path / "corpus"
    training.start(max_steps=SAVE_STEPS, prepared=tmp_path / "prepared")
    _, errors = training.ranks[0].communicate(timeout=BOUND)
    assert training.ranks[0].returncode == 0, errors
    (training.folder / "train.de").unlink()
    training.start(resume=True, prepared=tmp_path / "other")
    assert "train.de" in training.message(1)
    training.require_resumable(prepared=tmp_path / "prepared")


@pytest.mark.parametrize(("processes", "workers"), [(1, 1), (2, 0)])
def test_prepared_data_cut_short_while_training(
    training: Training, tmp_path: Path, processes: int, workers: int
) -> None:
    data = tmp_path / "prepared"
    training.start(processes, prepared=data, dataloader_num_workers=workers)
    training.wait_for_checkpoints()
    (file,) = data.glob("train/shard-*/*.arrow")
    os.truncate(file, 0)
    message = training.message(*[1] * processes)
    assert "a file of the data was cut short" in message
    assert message.endswith("; older checkpoints are intact; continue with --resume")
    training.require_intact()
    training.start(prepared=data, resume=True)
    message = training.message(1)
    assert f"prepared: {file} has 0 bytes instead of" in message
    shutil.rmtree(file.parent)
    training.require_resumable(prepared=data)


def test_a_package_that_an_option_needs_is_named(capfd):
    with pytest.raises(SystemExit) as stop, faults_in_one_line(Ending("train_wmt.py")):
        raise ImportError("You need to install\n`bitsandbytes`")
    assert stop.value.code == 1
    assert capfd.readouterr().err.startswith("train_wmt.py: You need to install `bitsandbytes`; install it, or leave")


HANGS = """
import time
from types import SimpleNamespace
from vaswani_transformer.launch.faults import StepTimeout

def hang():
    time.sleep(1000)

timeout = StepTimeout(1)
for _ in range(10):
    timeout.on_step_begin(SimpleNamespace(world_size=1), None, None)
    time.sleep(0.2)
print("hangs", flush=True)
hang()
"""


def test_a_step_that_hangs_ends_the_process_and_is_shown(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS, encoding="utf-8")
    process = start_python([tmp_path / "hangs.py"])
    output, errors = process.communicate(timeout=BOUND)
    assert (process.returncode, output) == (1, "hangs\n")
    assert errors.startswith("Timeout (0:00:01)!")
    assert re.search(r"hangs\.py\", line 7 in hang$", errors, re.MULTILINE)
