"""Two machines without a common disk, imitated on one: each with a working directory, corpora and caches of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from helpers import REPOSITORY, TINY, TRAIN_WMT, call_recipe, free_port, option_words, start_ranks, write_splits

from vaswani_transformer.training.checkpoints import checkpoint_damage, list_checkpoints


pytestmark = pytest.mark.system
BOUND = 180  # seconds for a training
STEPS, SAVE_STEPS = 20, 5
SETTINGS = {
    **TINY,
    "max_steps": STEPS,
    "save_steps": SAVE_STEPS,
    "eval_strategy": "no",
    "disable_tqdm": True,
    "train": ("train.en", "train.de"),
    "prepared": "prepared",
    "output_dir": "run",
}


@pytest.fixture
def machines(tmp_path: Path) -> list[Path]:
    """Working directories of two machines, and of one that trains alone."""
    folders = [tmp_path / name for name in ("first", "second", "alone")]
    for folder in folders:
        folder.mkdir()
        write_splits(folder, train=300)
    return folders


def ended(ranks: Sequence[subprocess.Popen], status: int = 0) -> str:
    """Wait for the ranks, require `status` of each, and return their standard error."""
    errors = [rank.communicate(timeout=BOUND)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [status] * len(ranks), "\n".join(errors)
    return "".join(errors)


def weights(machine: Path) -> bytes:
    return (machine / "run" / "model.safetensors").read_bytes()


def train_alone(folder: Path, **options: object) -> bytes:
    with contextlib.chdir(folder):
        call_recipe("train_wmt.py", *option_words({**SETTINGS, **options}))
    return weights(folder)


def test_each_machine_has_the_checkpoints_and_the_model_of_one(machines: list[Path]) -> None:
    first, second, alone = machines
    command = [TRAIN_WMT, *option_words({**SETTINGS, "virtual_ranks": 2, "save_on_each_node": True})]
    ended(start_ranks(command, 2, machines=[first, second]))
    assert weights(first) == weights(second) == train_alone(alone, virtual_ranks=2)
    for machine in (first, second):
        checkpoints = list_checkpoints(machine / "run")
        assert [*checkpoints] == [*range(SAVE_STEPS, STEPS + 1, SAVE_STEPS)]
        assert [checkpoint_damage(checkpoint) for checkpoint in checkpoints.values()] == [None] * len(checkpoints)
    assert (first / "run" / "all_results.json").exists()
    assert not (second / "run" / "all_results.json").exists()


def test_a_machine_dies_and_the_other_goes_on_alone(machines: list[Path]) -> None:
    """Machines start by `accelerate launch`, with the published configuration, but for CPUs."""
    first, second, alone = machines
    launch = yaml.safe_load((REPOSITORY / "recipes" / "launch" / "2x8gpu.yaml").read_text(encoding="utf-8"))
    launch |= {"use_cpu": True, "num_processes": 2, "main_process_port": free_port()}
    options = {"virtual_ranks": 3, "max_steps": 2000}
    command = [TRAIN_WMT, *option_words({**SETTINGS, **options, "save_on_each_node": True})]
    launchers = []
    for rank, machine in enumerate((first, second)):
        (machine / "launch.yaml").write_text(yaml.safe_dump(launch), encoding="utf-8")
        launcher = ["-m", "accelerate.commands.launch", "--config_file", "launch.yaml", "--machine_rank", str(rank)]
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        launchers.append(subprocess.Popen([sys.executable, *launcher, *command], cwd=machine, text=True, **streams))
    deadline = time.monotonic() + BOUND
    while max(list_checkpoints(second / "run"), default=0) < 2 * SAVE_STEPS and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in (child_of(launchers[1].pid), launchers[1].pid):  # at once, as when the power fails
        os.kill(process, signal.SIGKILL)
    errors = ended(launchers[:1], status=1)
    assert launchers[1].communicate(timeout=BOUND) is not None
    (line,) = [line for line in errors.splitlines() if line.startswith("train_wmt.py: ")]
    assert line.startswith("train_wmt.py: another process exited, stopped or lost its connection (")
    assert line.endswith("; continue with --resume")

    options["max_steps"] = max(list_checkpoints(first / "run")) + SAVE_STEPS
    assert train_alone(first, **options, resume=True) == train_alone(alone, **options)


def child_of(process: int) -> int:
    """The only child of a process."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    (child,) = [int(each) for each in children if b"train_wmt" in Path(f"/proc/{each}/cmdline").read_bytes()]
    return child
