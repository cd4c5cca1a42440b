"""The recipe that writes a page for one sentence."""

import re
import sys

import pytest
from helpers import call_recipe


@pytest.mark.parametrize("target", [None, "Der Mann liest."])
def test_a_page_is_written(lively_model, tmp_path, capsys, target):
    page = tmp_path / "page.html"
    arguments = ["--model", lively_model, "--source", "The man", "--output", page, "--alternatives", 0]
    call_recipe("explore.py", *arguments, *(["--target", target] if target else []), "--num_beams", 2)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "The man" in text
    assert not target or f'"translation":"{target}"' in text
    assert f"{page}: " in capsys.readouterr().out


def test_the_search_of_alternatives_shows_its_progress(lively_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    arguments = ["--model", lively_model, "--source", "The man", "--alternatives", 1, "--num_beams", 2]
    call_recipe("explore.py", *arguments, "--output", tmp_path / "page.html")
    assert re.search(r"Searching: 100%.* (\d+)/\1 ", capsys.readouterr().err)


def test_an_earlier_page_is_kept_unless_the_user_says_otherwise(lively_model, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("earlier", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"output: .*page\.html exists already"):
        call_recipe("explore.py", "--model", lively_model, "--source", "The man", "--output", page)
    assert page.read_text(encoding="utf-8") == "earlier"
