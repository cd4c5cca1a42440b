"""Hostile text on a terminal: every character is shown, and neither terminal nor rich obeys any."""

import io
import logging
import os
import re
import sys
import unicodedata
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError

import pytest
import torch
from helpers import Terminal, call_recipe, start_python
from safetensors import SafetensorError

from vaswani_transformer.system import processes
from vaswani_transformer.system.console import PlainConsole, ProgressBar
from vaswani_transformer.system.faults import Interrupted, exit_on_error, joined_processes
from vaswani_transformer.system.messages import printable


HOSTILE = [
    "[/INST]",
    "[link=http://evil]here",
    "a\\[b]",
    ":smile:",
    "\x1b]0;title\x07\x1b[2J",
    "\x9b31m",
    "\u202eabc",
    "\ud800",
]


def shown(text: str, *, force_terminal: bool = False, **kwargs: object) -> tuple[str, str]:
    """A text on a console; and a table with it as title, heading and cell."""
    files = io.StringIO(), io.StringIO()
    line, table = (PlainConsole(file=file, force_terminal=force_terminal, **kwargs) for file in files)
    line.print(text)
    table.print_table([text], [[text]], title=text)
    return files[0].getvalue(), files[1].getvalue()


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_shown_as_it_is_wherever_it_stands(text):
    expected = text.encode("unicode_escape").decode() if not text.isprintable() else text
    line, table = shown(text)
    assert line.strip() == expected
    assert table.count(expected) == 3
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in table.replace("\n", ""))


def test_line_feeds_tabs_and_all_scripts_stay():
    text = "a\tb\nΑθήνα 東京 \u200fעברית 🙂"
    assert printable(text) is text


def test_lines_are_broken_in_terminals_alone(monkeypatch):
    # After `map` with several processes, `datasets` leaves another mapping in os.environ.
    monkeypatch.setattr(PlainConsole, "_environ", os.environ)
    name = "/a b/" + "ö" * 300
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = [line.strip() for line in "".join(shown(name)).splitlines()]
    assert lines == [name] * 4  # a table without a frame
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    for terminal in ({"force_terminal": True, "color_system": None}, {}):
        assert max(map(len, "".join(shown(name, **terminal)).splitlines())) == 40


@pytest.mark.parametrize("disable", [False, True])
@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_bar_is_for_terminals(stream, disable):
    file = stream()
    assert list(ProgressBar([1, 2], "Counting", file=file, disable=disable)) == [1, 2]
    assert ("Counting" in file.getvalue()) == (stream is Terminal and not disable)


def test_a_warning_begins_a_line_while_a_bar_is_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with exit_on_error(), ProgressBar([1, 2], "Counting") as bar:
        for _ in bar:
            logging.getLogger("vaswani_transformer.some").warning("a warning")
    lines = re.split(r"[\r\n]", screen.getvalue())
    assert lines.count("a warning") == 2
    assert any(line.startswith("Counting:") for line in lines)


ENDS = [
    (ValueError("file x,\n line 3"), 1, "file x, line 3"),
    (FileNotFoundError(2, "No such file", "x"), 1, "there is no file or directory x"),
    (FileNotFoundError(2, "", "data/a/x"), 1, "there is no file or directory data/a/x; if it is a file of a public"),
    (PermissionError(13, "Permission denied", "x"), 1, "x: Permission denied"),
    (OSError(28, "No space left on device"), 1, "No space left on device"),
    (HTTPError("http://x", 404, "Not Found", Message(), None), 1, "HTTP Error 404: Not Found"),
    (ImportError("x is not installed"), 1, "x is not installed"),
    (SafetensorError("header"), 1, "header"),
    (MemoryError(), 1, "there is not enough memory; "),
    (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: 8 bytes"), 1, "there is not enough memory; "),
    (KeyboardInterrupt(), 130, "interrupted; repeat it"),
    (Interrupted(15), 143, "interrupted; repeat it"),
]


@pytest.mark.parametrize("handler", [exit_on_error, lambda advice: joined_processes(1.0, advice)])
@pytest.mark.parametrize(("error", "status", "line"), ENDS, ids=lambda value: type(value).__name__)
def test_an_error_that_is_no_bug_ends_a_program_with_one_line(handler, error, status, line, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["folder/some.py"])
    with pytest.raises(SystemExit) as stop, handler("repeat it"):
        raise error
    shown = capsys.readouterr().err.strip() if status != 1 else str(stop.value)
    assert shown.startswith(f"some.py: {line}")
    assert len(shown.splitlines()) == 1
    assert stop.value.code == (shown if status == 1 else status)


@pytest.mark.parametrize("error", [RuntimeError("shapes"), KeyError("x")])
def test_a_bug_keeps_its_traceback(error):
    with pytest.raises(type(error)), exit_on_error():
        raise error


def test_of_several_ranks_with_the_same_line_one_prints_it(monkeypatch, capsys):
    store = torch.distributed.HashStore()
    monkeypatch.setattr(processes, "_store", lambda: store)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "_exit", sys.exit)
    for message in ("no memory", "no memory", "no disk"):
        with pytest.raises(SystemExit), exit_on_error():
            raise ValueError(message)
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["no memory", "no disk"]


def test_recipes_end_with_one_line_when_their_output_is_full(saved_model, tmp_path, monkeypatch):
    with Path("/dev/full").open("w", buffering=1, encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit, match=r"^average.py: .*No space left on device$"):
            call_recipe("average.py", "--checkpoints", saved_model, "--output", tmp_path / "out")


@pytest.mark.system
def test_a_closed_pipe_ends_a_program_without_a_word():
    code = "from vaswani_transformer.system.faults import exit_on_error\nwith exit_on_error(): print(100_000 * 'x')"
    with start_python(["-c", code]) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
