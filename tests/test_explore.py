"""The recipe that writes a page for one sentence."""

import re
import sys

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
