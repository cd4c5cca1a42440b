"""Processes of one training: as many as cores, ended with one line by each fault; none waits for ever."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import kill_trials
import pytest
import torch
from helpers import TINY, TRAIN_WMT, call_recipe, free_port, option_words, start_python, start_ranks, write_splits
from safetensors.torch import load_file

from vaswani_transformer.runs.records import RunRecord
from vaswani_transformer.system import processor
from vaswani_transformer.system.processor import available_cores
from vaswani_transformer.training.checkpoints import checkpoint_damage, list_checkpoints


BOUND = 300  # seconds; the machine may be busy


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


# Processes that a training starts.


@pytest.mark.parametrize(
    ("limit", "expected"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("800000 100000", 4)]
)
def test_cores_are_those_of_the_container(tmp_path, monkeypatch, limit, expected):
    (tmp_path / "cpu.max").write_text(f"{limit}\n", encoding="ascii")
    monkeypatch.setattr(processor, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    assert available_cores() == expected
    (tmp_path / "cpu.max").unlink()
    assert available_cores() == 4


SETTINGS = {**TINY, "train": ("train.en", "train.de"), "eval_strategy": "no", "disable_tqdm": True}


@pytest.fixture
def train(tmp_path, monkeypatch) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts `vaswani train` on two processes in a folder with a corpus."""
    started = []
    write_splits(tmp_path, train=300)
    monkeypatch.chdir(tmp_path)

    def start(*words: str, **settings: object) -> subprocess.Popen:
        settings = {**SETTINGS, "output_dir": "run", "processes": 2, **settings}
        started.append(start_python(["-m", "vaswani_transformer", "train", *option_words(settings), *words]))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.system
def test_two_processes_train_the_weights_of_one(train):
    settings = {"dropout": 0.0, "max_steps": 6, "save_steps": 6}
    # So that Adam does not make large updates of rounding errors.
    settings |= {"lr_scheduler_type": "constant_with_warmup", "learning_rate": 1e-2, "adam_epsilon": 1e-2}
    call_recipe("train_wmt.py", *option_words({**SETTINGS, **settings, "output_dir": "one"}))
    training = train(**settings)
    output, errors = training.communicate(timeout=BOUND)
    assert training.returncode == 0, errors
    assert output.count("parameters\n") == 1
    assert RunRecord.load("run/all_results.json").training.processes == 2
    expected, weights = (load_file(f"{name}/model.safetensors") for name in ("one", "run"))
    for name, matrix in expected.items():
        torch.testing.assert_close(weights[name], matrix, rtol=1e-4, atol=1e-6)


def children(process: subprocess.Popen) -> list[Path]:
    numbers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    return [Path("/proc", number) for number in numbers]


def last_line(training: subprocess.Popen, status: int) -> str:
    """The one line, after that of the start, with which all processes end."""
    _, errors = training.communicate(timeout=BOUND)
    assert training.returncode == status, errors
    assert "Traceback" not in errors, errors
    _, line = re.findall("^\0?vaswani train: (.*)", errors, re.MULTILINE)  # PyTorch ends a message with NUL
    return line


ENDLESS = {"max_steps": 100_000, "save_steps": 5, "save_total_limit": 2}


@pytest.mark.system
def test_a_stopped_rank_ends_the_other_with_one_line(train):
    """Both begin at once, so that none waits for the imports of the other."""
    settings = {**SETTINGS, **ENDLESS, "output_dir": "run", "ddp_timeout": 5}
    ranks = start_ranks([TRAIN_WMT, *option_words(settings)], 2)
    try:
        wait_for(lambda: list_checkpoints("run"))
        ranks[1].send_signal(signal.SIGSTOP)
        _, errors = ranks[0].communicate(timeout=BOUND)
    finally:
        for rank in ranks:
            rank.kill()  # as a launcher kills one that is stopped, after the others have ended
            rank.communicate()
    assert ranks[0].returncode == 1
    (line,) = re.findall("^\0?train_wmt.py: (.*)", errors, re.MULTILINE)
    assert re.fullmatch(r"another process exited, stopped or lost its connection \(.*; continue with --resume", line)
    assert re.search(r"\(Timed out waiting \d+ms for", line)
    damages = [checkpoint_damage(directory) for directory in list_checkpoints("run").values()]
    assert damages == [None] * len(damages)


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


@pytest.mark.system
def test_all_processes_end_when_the_disk_is_full(train, small_disk):
    settings = {**ENDLESS, "output_dir": small_disk / "run"}
    training = train(**settings)
    wait_for(lambda: list_checkpoints(settings["output_dir"]))
    ballast = small_disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    line = last_line(training, 1)
    assert "No space left on device" in line
    assert "could not be written" in line
    ballast.unlink()
    settings["max_steps"] = max(list_checkpoints(settings["output_dir"])) + 1
    call_recipe("train_wmt.py", *option_words({**SETTINGS, **settings}), "--resume")
    assert max(list_checkpoints(settings["output_dir"])) == settings["max_steps"]


@pytest.mark.system
def test_a_training_killed_in_a_save_ends_in_the_same_bits(tmp_path):
    """A short form of `make trials`."""
    (line,) = kill_trials.run(kills=1, processes=[1], virtual_ranks=0, seed=0, folder=tmp_path)
    assert "1 kills in saves" in line


@pytest.mark.system
def test_a_signal_to_one_process_ends_all_with_a_checkpoint_and_one_line(train):
    settings = dict(ENDLESS)
    training = train(**settings)
    wait_for(lambda: list_checkpoints("run"))
    (other,) = children(training)
    os.kill(int(other.name), signal.SIGTERM)
    assert last_line(training, 143) == "interrupted; continue with --resume"
    last = max(list_checkpoints("run"))
    states = Path("run", f"checkpoint-{last}").glob("rng_state_*")
    assert {path.name for path in states} == {"rng_state_0.pth", "rng_state_1.pth"}
    training = train("--resume", **settings)
    wait_for(lambda: max(list_checkpoints("run"), default=0) > last)
    (other,) = children(training)
    training.kill()
    training.communicate()
    wait_for(lambda: not other.exists())
    settings["max_steps"] = max(list_checkpoints("run")) + 1
    call_recipe("train_wmt.py", *option_words({**SETTINGS, **settings, "output_dir": "run"}), "--resume")
    assert max(list_checkpoints("run")) == settings["max_steps"]


@pytest.mark.system
def test_a_process_ends_although_the_first_ended_while_it_imported(train):
    training = train()
    wait_for(lambda: children(training))
    (other,) = children(training)
    training.kill()
    training.communicate()
    wait_for(lambda: not other.exists())


@pytest.mark.system
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"precision": "fp16"}, "precision: fp16 needs a GPU"),  # before the processes are joined
        ({"source_tokens": 90, "target_tokens": 90}, "a batch of 1 sentences cannot be divided into 2"),
    ],
)
def test_a_mistake_is_reported_once(train, mistake, message):
    training = train(**mistake)
    _, errors = training.communicate(timeout=BOUND)
    assert training.returncode == 1
    assert errors.count(message) == 1
    assert "Traceback" not in errors


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# Ranks of a launcher, and their main process.

JOINS = """
import os, signal, time
from datetime import timedelta
from vaswani_transformer.system.processes import join_process_group
signal.signal(signal.SIGTERM, lambda *_: (print('terminated', flush=True), os._exit(0)))
join_process_group(True, timedelta(minutes=1))
print(os.getpid(), flush=True)
time.sleep(3)
print('end', flush=True)
"""
# Rank 0 serves the store; its work takes longer than a collective operation waits.
WAITS = """
import os, time, torch
from vaswani_transformer.system.faults import joined_processes
from vaswani_transformer.system.processes import main_process_first, on_main_process
with joined_processes(0.1, 'repeat the command'):
    assert on_main_process(lambda: time.sleep(8) or 'result') == 'result'
    with main_process_first():
        print(time.monotonic(), flush=True)
        time.sleep(1)
    if os.environ['RANK'] == '0':
        time.sleep(1000)
    torch.distributed.barrier()
"""


@pytest.mark.system
@pytest.mark.parametrize("launched", [True, False])
def test_a_process_ends_with_its_launcher_but_not_with_its_shell(tmp_path: Path, launched: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    if launched:
        environment["TORCHELASTIC_RUN_ID"] = "none"
    script = write(tmp_path / "script.py", JOINS)
    start = "import subprocess, sys; subprocess.call([sys.executable, sys.argv[1]])"
    launcher = start_python(["-c", start, script], environment=environment)
    process = int(launcher.stdout.readline())
    launcher.send_signal(signal.SIGKILL)
    assert launcher.stdout.readline() == ("terminated\n" if launched else "end\n")
    launcher.communicate()
    wait_for(lambda: not Path(f"/proc/{process}").exists())  # an orphan, not ours to wait for


@pytest.mark.system
def test_ranks_without_a_launcher_wait_for_the_main_process_at_work_but_not_for_a_dead_one(tmp_path: Path) -> None:
    script = write(tmp_path / "script.py", WAITS)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    group["ACCELERATE_USE_CPU"] = "true"
    ranks: list[subprocess.Popen] = []
    for rank in map(str, range(2)):
        ranks.append(start_python([script], environment={**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank}))
    first, second = (float(rank.stdout.readline()) for rank in ranks)
    assert second - first >= 1
    ranks[0].kill()
    ranks[0].communicate()
    _, errors = ranks[1].communicate(timeout=BOUND)
    assert ranks[1].returncode == 1
    (line,) = [line for line in errors.splitlines() if line.startswith("script.py: ")]
    assert line.startswith("script.py: another process exited, stopped or lost its connection (")
    assert line.endswith("; repeat the command")
