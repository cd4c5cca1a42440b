"""Provenance of numbers: command, commit, machine and versions, without traces of a user."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import REPOSITORY

from vaswani_transformer.runs.provenance import describe_run, published


pytestmark = pytest.mark.system


def test_run_is_described_by_command_commit_machine_and_versions():
    run = describe_run()
    assert run.versions["torch"] == torch.__version__
    assert run.hardware
    interpreter, program = run.command.split()[:2]
    assert (interpreter, Path(program).name) == ("python", Path(sys.argv[0]).name)
    assert not Path(program).is_absolute()
    if (REPOSITORY / ".git").exists():
        command = ["git", "rev-parse", "--verify", "HEAD"]
        head = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.strip()
        assert run.commit.removesuffix("-dirty") == (head or "unknown")  # git opens no repository of another user


def test_without_git_the_commit_is_unknown(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_run().commit == "unknown"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("runs/data", "runs/data"),
        ("wmt/wmt14", "wmt/wmt14"),
        ("/home/alice/train.en", "train.en"),
        ("~/train.en", "train.en"),
        ("~50,000 pairs by volunteers", "~50,000 pairs by volunteers"),
        ("../alice/train.en", "train.en"),
        ("data/../train.en", "train.en"),
        (["/home/alice/a.en", "b.de"], ["a.en", "b.de"]),
        (None, None),
        (3, 3),
    ],
)
def test_published_paths_tell_of_no_user(value, shown):
    assert published(value) == shown
    assert published(str(Path.cwd() / "runs" / "a")) == "runs/a"


def test_a_published_command_tells_of_no_user_and_no_token(monkeypatch, tmp_path):
    options = ["--model", "/home/alice/m", "--output=/home/alice/o", "--text=a=/b", str(tmp_path), "two words"]
    options += ["--hub_token", "secret", "--hub_token=secret", "-n"]
    monkeypatch.setattr(sys, "argv", [str(Path.cwd() / "recipes" / "x.py"), *options])
    expected = f"python recipes/x.py --model m --output o --text a=/b {tmp_path.name} 'two words'"
    assert describe_run().command == f"{expected} --hub_token ... --hub_token ... -n"


def test_the_command_is_vaswani_if_that_was_called(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/recipes/train_wmt.py", "--config", "small"])
    monkeypatch.setattr(sys.modules["__main__"], "COMMAND", "vaswani train", raising=False)
    assert describe_run().command == "vaswani train --config small"
