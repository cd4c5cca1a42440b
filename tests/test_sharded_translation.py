"""Ranges of lines, translated by several commands in any order, are what one command writes."""

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from datasets import Dataset
from helpers import REPOSITORY, call_recipe, write_lines

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding import line_translation, sharded_translation
from vaswani_transformer.decoding.line_translation import LineTranslator
from vaswani_transformer.decoding.sharded_translation import ShardedTranslation
from vaswani_transformer.model.translation_vaswani import Translation
from vaswani_transformer.options.decoding import TranslationArguments


LINES = [english for english, _ in phrasebook("test")[:9]] + ["", "one\u2028line", "Ünïcödé 🙂"]
OPTIONS = {
    "text": ("out.txt", []),
    "pairs with scores": ("out.jsonl", ["--num_return_sequences", 2, "--return_scores"]),
    "samples": ("out.jsonl", ["--do_sample", "--seed", 3]),
}


@pytest.fixture
def source(tmp_path):
    return write_lines(tmp_path / "in.txt", LINES)


@pytest.fixture
def translate(lively_model, source):
    """Run the recipe, with short translations."""

    def translate(output: Path, *arguments: object) -> None:
        files = ("--input", source, "--output", output)
        call_recipe("translate.py", "--model", lively_model, "--max_new_tokens", 6, *files, *arguments)

    return translate


@pytest.mark.parametrize(("name", "options"), OPTIONS.values(), ids=OPTIONS)
def test_shards_in_any_order_are_what_one_command_writes(translate, tmp_path, name, options):
    translate(tmp_path / f"whole-{name}", "--lines_per_shard", 4, *options)
    for number in (1, 2, 0):
        translate(tmp_path / name, "--shard", f"{number}/3", *options)
    shards = sorted(path.name for path in (tmp_path / f"{name}.shards").glob("*.gz"))
    assert shards == [f"0000{number}-of-00003.gz" for number in range(3)]
    translate(tmp_path / name, *options)
    assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert not (tmp_path / f"{name}.shards").exists()


def test_damaged_and_missing_shards_are_translated_again(translate, tmp_path, caplog):
    translate(tmp_path / "whole")
    for number in range(6):
        translate(tmp_path / "out", "--shard", f"{number}/6")  # of two lines each
    empty, cut_off, changed, shorter, missing, _ = shards = sorted((tmp_path / "out.shards").glob("*.gz"))
    empty.write_bytes(b"")
    cut_off.write_bytes(cut_off.read_bytes()[:-9])
    content = changed.read_bytes()
    changed.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    shorter.write_bytes(gzip.compress(gzip.decompress(shorter.read_bytes())[:-1]))
    missing.unlink()
    translate(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    warnings = [each.getMessage() for each in caplog.records if "translated again" in each.getMessage()]
    counted = "has {} translations instead of 2"
    messages = [counted.format(0), "is damaged", "is damaged", counted.format(1)]
    for shard, message, warning in zip(shards[:4], messages, warnings, strict=True):
        assert f"{shard} {message}" in warning


def test_a_search_that_fails_leaves_nothing_to_continue(translate, tmp_path):
    with pytest.raises(SystemExit, match="num_return_sequences"):
        translate(tmp_path / "out", "--num_beams", "2", "--num_return_sequences", "3")
    translate(tmp_path / "out", "--num_beams", "2")
    assert not (tmp_path / "out.shards").exists()


def test_a_task_checks_its_own_shard_alone(translate, tmp_path):
    for number in range(2):
        translate(tmp_path / "out", "--shard", f"{number}/3")
    other = tmp_path / "out.shards" / "00000-of-00003.gz"
    other.write_bytes(b"damaged")
    translate(tmp_path / "out", "--shard", "1/3")
    assert other.read_bytes() == b"damaged"


@pytest.mark.parametrize(("lines", "count"), [(LINES, 5), (LINES[-3:], 4)], ids=["unequal ranges", "an empty range"])
def test_shards_have_all_lines_once(translate, source, tmp_path, lines, count, monkeypatch):
    write_lines(source, lines)

    def repeat(model, tokenizer, lines, *args, **options):
        return [(range(len(lines)), [[Translation(line, [])] for line in lines])]

    monkeypatch.setattr(line_translation, "translate_in_batches", repeat)
    for number in range(count):
        translate(tmp_path / "out", "--shard", f"{number}/{count}")
    monkeypatch.setattr(ShardedTranslation, "translate", lambda *_: None)  # nothing is missing
    translate(tmp_path / "out")
    expected = "".join(" ".join(line.splitlines()) + "\n" for line in lines)
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected


def test_a_finished_shard_is_left_alone_and_a_second_attempt_gives_the_same_bytes(
    translate, tmp_path, capsys, monkeypatch
):
    translate(tmp_path / "out", "--shard", "1/4")
    shard = tmp_path / "out.shards" / "00001-of-00004.gz"
    content = shard.read_bytes()
    shard.unlink()
    translate(tmp_path / "out", "--shard", "1/4")
    assert shard.read_bytes() == content
    monkeypatch.setattr(line_translation, "translate_in_batches", None)
    translate(tmp_path / "out", "--shard", "1/4")
    assert f"{shard} is finished already" in capsys.readouterr().err


def test_of_two_other_translations_that_begin_together_one_is_refused(tmp_path, source, lively_model, monkeypatch):
    monkeypatch.setattr(LineTranslator, "translate", lambda self, number, lines, bar: [b"\n" for _ in lines])
    names = {"model": str(lively_model), "input": str(source), "output": str(tmp_path / "out")}
    first, second = (ShardedTranslation(TranslationArguments(**names, num_beams=beams), 2) for beams in (2, 3))
    assert first.begin() == second.begin() == [0, 1]
    first.translate([0])
    with pytest.raises(ValueError, match="holds part of another translation, which differs in num_beams"):
        second.translate([1])


def test_an_engine_has_two_shards_at_once_and_an_error_of_one_ends_the_other(
    tmp_path, source, lively_model, monkeypatch
):
    both, ended = threading.Barrier(2, timeout=60), []

    class TwoCalls(LineTranslator):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            self.calls = 2

    def translate(model: object, tokenizer: object, sources: list[str], *_: object, **__: object) -> Iterator:
        number = firsts.index(sources[0])
        if number < 2:
            both.wait()
        if number == 2:
            raise ValueError("the search failed")
        if number == 3:
            for _ in range(600):
                time.sleep(0.1)
                yield [], []
            ended.append(number)
        yield range(len(sources)), [[Translation(text, [])] for text in sources]

    monkeypatch.setattr(sharded_translation, "LineTranslator", TwoCalls)
    monkeypatch.setattr(line_translation, "translate_in_batches", translate)
    options = TranslationArguments(model=str(lively_model), input=str(source), output=str(tmp_path / "out"))
    translation = ShardedTranslation(options, 5)
    firsts = [translation.sources(number)[0].strip() for number in range(5)]
    assert len({*firsts}) == 5
    with pytest.raises(ValueError, match="the search failed"):
        translation.translate(translation.begin())
    assert translation.begin() == [2, 3, 4]
    assert not ended


def test_rows_of_tables_are_lines(translate, source, tmp_path):
    rows = [{"en": line, "other": str(number)} for number, line in enumerate(LINES)]
    rows[3]["en"] = rows[3]["en"].replace(" ", "\n", 1)  # still one line
    write_lines(tmp_path / "in.jsonl", map(json.dumps, rows))
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    translate(tmp_path / "expected")
    for name in ("in.jsonl", "saved"):
        translate(tmp_path / f"{name}.out", "--input", tmp_path / name, "--column", "en")
        assert (tmp_path / f"{name}.out").read_bytes() == (tmp_path / "expected").read_bytes()
        with pytest.raises(SystemExit, match="no column is called 'fr'"):
            translate(tmp_path / "none", "--input", tmp_path / name, "--column", "fr")


@pytest.mark.system
def test_a_task_of_slurm_translates_its_shard(source, tmp_path, lively_model):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "3", "PATH": path}
    options = ["--model", lively_model, "--input", source, "--output", tmp_path / "out", "--max_new_tokens", 6]
    command = ["bash", "recipes/cluster/slurm.sh", 4, *options]
    subprocess.run([*map(str, command)], cwd=REPOSITORY, env=environment, check=True)
    content = gzip.decompress((tmp_path / "out.shards" / "00003-of-00004.gz").read_bytes())
    assert content.count(b"\n") == 3
