"""`vaswani train` on several cores: as many processes, the weights of one, and one line for each fault."""

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from helpers import TINY, call_recipe, option_words, start_python, write_pairs
from safetensors.torch import load_file

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.runs.records import RunRecord
from vaswani_transformer.system import cores, processes
from vaswani_transformer.system.processes import available_cores
from vaswani_transformer.training.checkpoints import list_checkpoints


BOUND = 300  # seconds; the machine may be busy
TRAIN = ["-m", "vaswani_transformer", "train"]
SETTINGS = {**TINY, "train": ("train.en", "train.de"), "eval_strategy": "no", "disable_tqdm": True}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    write_pairs(phrasebook("train")[:300], *(tmp_path / name for name in SETTINGS["train"]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def machine(monkeypatch):
    """Sets the cores of the machine; returns the environments of the processes that are started."""
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, env, **_: started.append((command, env)))

    def choose(available: int, threads: int) -> list:
        monkeypatch.setattr(cores, "available_cores", lambda: available)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        return started

    return choose


def options(**changes: object) -> Namespace:
    budget = {"source_tokens": 25000, "target_tokens": 25000, "max_length": 256}
    return Namespace(**{"processes": None, "virtual_ranks": None, "use_cpu": False, **budget, **changes})


@pytest.mark.parametrize(
    ("available", "threads", "changes", "count", "threads_each"),
    [
        (2, 2, {}, 2, 1),
        (64, 4, {}, 4, 1),  # OMP_NUM_THREADS
        (3, 64, {}, 3, 1),  # a container's limit
        (64, 64, {}, 8, 8),
        (64, 64, {"virtual_ranks": 5}, 5, 12),
        (8, 8, {"target_tokens": 1500}, 5, 1),  # a batch has five sentences of 256 tokens
        (8, 8, {"source_tokens": 255}, 1, 8),
        (8, 8, {"source_tokens": None, "target_tokens": None}, 8, 1),  # fine-tuning takes them from the corpus
        (8, 8, {"source_tokens": 1500, "processes": 8}, 8, 1),
        (4, 4, {"processes": 2}, 2, 2),
        (1, 1, {"processes": 3}, 3, 1),
        (4, 4, {"processes": 1}, 1, 4),
        (1, 1, {}, 1, 1),
    ],
)
def test_one_process_a_core(machine, monkeypatch, capsys, available, threads, changes, count, threads_each):
    monkeypatch.setattr(sys.modules["__main__"], "COMMAND", "vaswani train", raising=False)
    started = machine(available, threads)
    cores.start_processes("train_wmt.py", options(**changes))
    assert [int(environment["RANK"]) for _, environment in started] == [*range(1, count)]
    assert all(environment["OMP_NUM_THREADS"] == str(threads_each) for _, environment in started)
    assert [command for command, _ in started] == [[sys.executable, *sys.orig_argv[1:]]] * (count - 1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (count > 1)
    if lines:
        assert lines[0].startswith(f"vaswani train: {count} processes of ")
        assert os.environ["RANK"] == "0"


def test_the_recipe_by_its_path_names_the_faster_option(machine, capsys):
    started = machine(2, 2)
    cores.start_processes("train_wmt.py", options())
    assert not started
    assert capsys.readouterr().err == "train_wmt.py: trains in one process on 2 cores; --processes 2 may be faster\n"
    cores.start_processes("train_wmt.py", options(processes=2))
    assert len(started) == 1


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION"])
def test_a_launcher_starts_all_processes_itself(machine, capsys, variable):
    started = machine(2, 2)
    os.environ[variable] = "2"
    cores.start_processes("train_wmt.py", options(processes=2))
    assert not started
    assert capsys.readouterr().err == ""


def test_a_sweep_leaves_the_processes_to_the_training(machine):
    started = machine(2, 1)
    os.environ[processes.LAUNCHER] = "SIGTERM"
    cores.start_processes("train_wmt.py", options(processes=2))
    assert len(started) == 1


def test_gpus_are_left_to_the_launcher(machine, monkeypatch, capsys):
    started = machine(2, 2)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    cores.start_processes("train_wmt.py", options(processes=2))
    assert not started
    assert capsys.readouterr().err == ""
    cores.start_processes("train_wmt.py", options(processes=2, use_cpu=True))
    assert len(started) == 1


@pytest.mark.parametrize(
    ("limit", "expected"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("800000 100000", 4)]
)
def test_cores_are_those_of_the_container(tmp_path, monkeypatch, limit, expected):
    (tmp_path / "cpu.max").write_text(f"{limit}\n", encoding="ascii")
    monkeypatch.setattr(processes, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    assert available_cores() == expected
    (tmp_path / "cpu.max").unlink()
    assert available_cores() == 4


@pytest.mark.system
def test_two_processes_train_the_weights_of_one(folder):
    settings = {**SETTINGS, "dropout": 0.0, "max_steps": 6, "save_steps": 6}
    # So that Adam does not make large updates of rounding errors.
    settings |= {"lr_scheduler_type": "constant_with_warmup", "learning_rate": 1e-2, "adam_epsilon": 1e-2}
    call_recipe("train_wmt.py", *option_words({**settings, "output_dir": "one"}))
    training = start_python([*TRAIN, *option_words({**settings, "output_dir": "two", "processes": 2})])
    output, errors = training.communicate(timeout=BOUND)
    assert training.returncode == 0, errors
    assert output.count("parameters\n") == 1
    assert RunRecord.load("two/all_results.json").training.processes == 2
    expected, weights = (load_file(f"{name}/model.safetensors") for name in ("one", "two"))
    for name, matrix in expected.items():
        torch.testing.assert_close(weights[name], matrix, rtol=1e-4, atol=1e-6)


def children(process: subprocess.Popen) -> list[Path]:
    numbers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    return [Path("/proc", number) for number in numbers]


def wait_for(condition) -> None:
    until = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.system
def test_a_signal_to_the_first_process_ends_all_with_a_checkpoint_and_one_line(folder):
    settings = {**SETTINGS, "max_steps": 100_000, "save_steps": 5, "save_total_limit": 2, "output_dir": "run"}
    command = [*TRAIN, *option_words(settings), "--processes", "2"]
    training = start_python(command)
    wait_for(lambda: list_checkpoints("run"))
    training.send_signal(signal.SIGTERM)
    _, errors = training.communicate(timeout=BOUND)
    assert training.returncode == 143
    assert [line for line in errors.splitlines() if line.startswith("vaswani train")][1:] == [
        "vaswani train: interrupted; continue with --resume"
    ]
    last = max(list_checkpoints("run"))
    training = start_python([*command, "--resume"])
    wait_for(lambda: max(list_checkpoints("run"), default=0) > last)
    (other,) = children(training)
    training.kill()
    training.communicate()
    wait_for(lambda: not other.exists())
    last = max(list_checkpoints("run"))
    call_recipe("train_wmt.py", *option_words({**settings, "max_steps": last + 1}), "--resume")
    assert max(list_checkpoints("run")) == last + 1


@pytest.mark.system
def test_a_process_ends_although_the_first_ended_while_it_imported(folder):
    training = start_python([*TRAIN, *option_words({**SETTINGS, "output_dir": "run"}), "--processes", "2"])
    wait_for(lambda: children(training))
    (other,) = children(training)
    training.kill()
    training.communicate()
    wait_for(lambda: not other.exists())


@pytest.mark.system
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (("--precision", "fp16"), "fp16: the CPU would train in float32 instead"),  # before the processes are joined
        (("--source_tokens", "90", "--target_tokens", "90"), "a batch of 1 sentences cannot be divided into 2"),
    ],
)
def test_a_mistake_is_reported_once(folder, mistake, message):
    training = start_python([*TRAIN, *option_words({**SETTINGS, "output_dir": "run"}), *mistake, "--processes", "2"])
    _, errors = training.communicate(timeout=BOUND)
    assert training.returncode == 1
    assert errors.count(message) == 1
    assert "Traceback" not in errors
