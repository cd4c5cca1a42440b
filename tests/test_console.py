"""What a terminal is shown of hostile text: every character, and none that it or rich obeys."""

import io
import unicodedata
from dataclasses import replace

import pytest
from helpers import REPOSITORY, recipe_module
from rich.progress import Progress, TextColumn
from rich.table import Table

from vaswani_transformer.console import PlainConsole, one_line, printable
from vaswani_transformer.convert.parity import Difference, ParityReport
from vaswani_transformer.experiments.records import Example, RunRecord


HOSTILE = [
    "[/INST]",
    "[bold]",
    "[link=http://evil]here",
    "a\\[b]",
    ":smile:",
    "\x1b]0;title\x07\x1b[2J",
    "\x9b31m",
    "\ud800",
]


def shown(*renderables: object) -> str:
    file = io.StringIO()
    PlainConsole(file=file, force_terminal=False).print(*renderables)
    return file.getvalue()


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_shown_as_it_is_wherever_it_stands(text):
    expected = text.encode("unicode_escape").decode() if not text.isprintable() else text
    table = Table(text, title=text)
    table.add_row(text)
    assert shown(text).strip() == expected
    assert shown(table).count(expected) == 3
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in shown(table).replace("\n", ""))


def test_line_feeds_tabs_and_all_scripts_stay():
    text = "a\tb\nΑθήνα 東京 \u202bעברית\u202c 🙂"
    assert printable(text) is text


def test_an_error_is_one_line():
    assert one_line(ValueError("no\n file \x1b[31m'a'\r\n\u2028b\x85c")) == "no file \\x1b[31m'a' b c"
    assert len(one_line("x\u2028y\x0bz\x1cw").splitlines()) == 1


def test_progress_shows_names_of_jobs_as_they_are():
    file = io.StringIO()
    console = PlainConsole(file=file, width=100)
    with Progress(TextColumn("{task.description}", markup=False), console=console) as progress:
        progress.add_task("row [/INST]")
        progress.console.print("log \x1b[2J [/INST]")
    assert "log \\x1b[2J [/INST]" in file.getvalue()
    assert "row [/INST]" in file.getvalue()


def test_lines_are_broken_in_terminals_alone():
    names, outputs = "/a b/" + "ö" * 300, []
    for is_terminal in (False, True):
        file = io.StringIO()
        console = PlainConsole(file=file, force_terminal=is_terminal, color_system=None, _environ={"COLUMNS": "40"})
        table = Table("name")
        table.add_row(names)
        console.print(names, table)
        outputs.append(file.getvalue())
    assert outputs[0].count(names) == 2
    assert max(map(len, outputs[1].splitlines())) == 40


@pytest.mark.parametrize("text", HOSTILE)
def test_training_shows_sentences_as_they_are(capsys, text):
    record = RunRecord.load(REPOSITORY / "model_cards" / "multi30k-en-de.json")
    test = replace(record.test, bleu=replace(record.test.bleu, signature=text))
    recipe_module("train_wmt.py").show_results(replace(record, test=test, examples=[Example(text, text, text)]))
    assert capsys.readouterr().out.count(printable(text)) == 4


@pytest.mark.parametrize("text", HOSTILE)
def test_export_and_conversion_show_names_and_hypotheses_as_they_are(capsys, monkeypatch, tmp_path, model, text):
    export = recipe_module("export.py")
    report = ParityReport(
        lines=1,
        identical=0,
        identical_share=0.0,
        tie_tolerance=0.0,
        kinds={text: 1},
        differences=[Difference(1, text, text, text, text, 0.0, 0.0)],
    )
    export.show(export.ExportArguments(text, str(tmp_path)), tmp_path, report)
    assert capsys.readouterr().out.count(printable(text)) == 5
    convert = recipe_module("convert.py")
    convert.show(convert.ConvertArguments("marian", text, text), model, model)
    assert capsys.readouterr().out.count(printable(text)) == 2


def test_evaluation_of_hostile_lines_in_a_hostile_file(capsys, monkeypatch, tmp_path):
    lines = "".join(f"a man reads {text}\n" for text in HOSTILE[:-1])
    names = [tmp_path / f"[bold]{name}[" for name in ("source", "reference", "hypotheses")]
    for path in names:
        path.write_text(lines, encoding="utf-8")
    options = [f"--{option}={path}" for option, path in zip(("source", "reference", "hypotheses"), names, strict=True)]
    monkeypatch.setattr("sys.argv", ["score.py", *options, "--output_dir", str(tmp_path / "out")])
    recipe_module("score.py").main()
    out = capsys.readouterr().out
    assert out.count("[bold]hypotheses[") == 1
    assert (tmp_path / "out" / "results.json").is_file()


def test_recipes_show_data_through_this_console_alone():
    for path in (REPOSITORY / "recipes").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "rich.console" not in text, path
        assert "from_markup" not in text, path
        assert "TextColumn(" not in text or "markup=False" in text, path
