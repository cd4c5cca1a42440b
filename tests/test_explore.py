"""The recipe that writes a page for one sentence."""

import re

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


def test_the_search_of_alternatives_shows_its_progress(lively_model, tmp_path, capsys):
    arguments = ["--model", lively_model, "--source", "The man", "--alternatives", 1, "--num_beams", 2]
    call_recipe("explore.py", *arguments, "--output", tmp_path / "page.html")
    assert re.search(r"Searching: 100%.* (\d+)/\1 ", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 1}, "num_beams: must be"),
        ({"output": "there.html"}, "output: there.html exists already"),
    ],
)
def test_bad_input_gets_one_line(lively_model, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.html").touch()
    given = {"model": lively_model, "source": "The man", "output": "page.html", **options}
    arguments = [text for name, value in given.items() for text in (f"--{name}", value)]
    with pytest.raises(SystemExit) as stopped:
        call_recipe("explore.py", *arguments)
    assert message in str(stopped.value)
    assert "\n" not in str(stopped.value)
    assert not (tmp_path / "page.html").exists()
