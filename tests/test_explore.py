"""The recipe that writes a page for one sentence."""

import re
import sys

import pytest
from helpers import call_recipe


def test_a_page_is_written_and_its_progress_is_shown(lively_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    page = tmp_path / "page.html"
    options = ["--source", "The man", "--target", "Der Mann liest.", "--alternatives", 1, "--num_beams", 2]
    call_recipe("explore.py", "--model", lively_model, *options, "--output", page)
    text, shown = page.read_text(encoding="utf-8"), capsys.readouterr()
    assert text.startswith("<!doctype html>")
    assert "The man" in text
    assert '"translation":"Der Mann liest."' in text
    assert f"{page}: " in shown.out
    assert re.search(r"Searching: 100%.* (\d+)/\1 ", shown.err)


def test_an_earlier_page_is_kept_unless_the_user_says_otherwise(lively_model, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("earlier", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"output: .*page\.html exists already"):
        call_recipe("explore.py", "--model", lively_model, "--source", "The man", "--output", page)
    assert page.read_text(encoding="utf-8") == "earlier"
