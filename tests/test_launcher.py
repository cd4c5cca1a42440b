"""The processes that a training starts on the CPU: as many as cores, and none is waited for that has ended."""

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from helpers import start_python

from vaswani_transformer.system import launcher


@pytest.fixture
def machine(monkeypatch):
    """Sets the cores of the machine; returns the environments of the processes that are started."""
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(launcher, "_started", [])
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, env, **_: started.append((command, env)))

    def choose(available: int, threads: int) -> list:
        monkeypatch.setattr(launcher, "available_cores", lambda: available)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        return started

    # Not another mapping, which a module that is imported now would keep.
    with patch.dict(os.environ, {"PATH": os.environ["PATH"]}, clear=True):
        yield choose


def options(**changes: object) -> Namespace:
    budget = {"source_tokens": 25000, "target_tokens": 25000, "max_length": 256}
    return Namespace(**{"processes": None, "virtual_ranks": None, "use_cpu": False, **budget, **changes})


@pytest.mark.parametrize(
    ("available", "threads", "changes", "count", "threads_each"),
    [
        (64, 4, {}, 4, 1),  # OMP_NUM_THREADS
        (3, 64, {}, 3, 1),  # a container's limit
        (64, 64, {}, 8, 8),
        (64, 64, {"virtual_ranks": 5}, 5, 12),
        (8, 8, {"target_tokens": 1500}, 5, 1),  # a batch has five sentences of 256 tokens
        (8, 8, {"source_tokens": 255}, 1, 8),
        (8, 8, {"source_tokens": None, "target_tokens": None}, 8, 1),  # fine-tuning takes them from the corpus
        (8, 8, {"source_tokens": 1500, "processes": 8}, 8, 1),
        (4, 4, {"processes": 2}, 2, 2),
        (4, 4, {"processes": 1}, 1, 4),
    ],
)
def test_one_process_a_core(machine, monkeypatch, capsys, available, threads, changes, count, threads_each):
    monkeypatch.setattr(sys.modules["__main__"], "COMMAND", "vaswani train", raising=False)
    started = machine(available, threads)
    launcher.start_processes(options(**changes))
    assert [int(environment["RANK"]) for _, environment in started] == [*range(1, count)]
    assert all(environment["OMP_NUM_THREADS"] == str(threads_each) for _, environment in started)
    assert [command for command, _ in started] == [[sys.executable, *sys.orig_argv[1:]]] * (count - 1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (count > 1)
    if lines:
        assert lines[0].startswith(f"vaswani train: {count} processes of ")
        assert os.environ["RANK"] == "0"


def test_the_recipe_by_its_path_names_the_faster_option(machine, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["recipes/train_wmt.py"])
    started = machine(2, 2)
    launcher.start_processes(options())
    assert not started
    assert capsys.readouterr().err == "train_wmt.py: trains in one process on 2 cores; --processes 2 may be faster\n"


@pytest.mark.parametrize(
    ("variable", "has_gpu", "changes", "count"),
    [
        ("WORLD_SIZE", False, {}, 0),
        ("TORCHELASTIC_RUN_ID", False, {}, 0),
        ("ACCELERATE_MIXED_PRECISION", False, {}, 0),
        ("OTHER", True, {}, 0),
        ("OTHER", True, {"use_cpu": True}, 1),
    ],
)
def test_processes_of_a_launcher_and_of_gpus_are_left_to_it(machine, monkeypatch, variable, has_gpu, changes, count):
    started = machine(2, 2)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_gpu)
    os.environ[variable] = "2"
    launcher.start_processes(options(processes=2, **changes))
    assert len(started) == count


ENDS_EARLY = """
import os, sys
from argparse import Namespace
from datetime import timedelta
from vaswani_transformer.system.launcher import start_processes
from vaswani_transformer.system.processes import join_process_group
if os.environ.get("RANK") == "1":
    sys.exit("no memory")
start_processes(Namespace(processes=2, use_cpu=True))
join_process_group(True, timedelta(minutes=30))
"""


@pytest.mark.system
def test_a_started_process_that_ends_before_the_training_is_not_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ENDS_EARLY, encoding="utf-8")
    process = start_python([script])
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    *_, error, line = errors.splitlines()
    assert error == "no memory"
    assert line.startswith("script.py: a process that divides the batches ended before the training; ")
