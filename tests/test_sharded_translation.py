"""Shards of one translation, done by several commands in any order, give what one command gives."""

import json
import os
import random
import shutil

import pyarrow as pa
import pytest
from datasets import Dataset
from helpers import call_recipe
from pyarrow import parquet

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding import decoding_arguments as decoding
from vaswani_transformer.decoding.line_translation import TranslationOptions, input_lines
from vaswani_transformer.decoding.sharded_translation import ShardedTranslation
from vaswani_transformer.model.saved_model import open_model


LINES = [english for english, _ in phrasebook("test")[:9]] + ["", "one\u2028line", "Ünïcödé 🙂"]
SETTINGS = {
    "text": ("out.txt", []),
    "pairs with scores": ("out.jsonl", ["--num_return_sequences", 2, "--return_scores"]),
    "samples": ("out.jsonl", ["--do_sample", "--seed", 3]),
}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture
def translate(lively_model):
    """Run the recipe; with an input, also with the model and short shards."""

    def translate(*arguments: object) -> None:
        if "--input" in arguments:
            arguments = (*arguments, "--model", lively_model, "--max_new_tokens", 6, "--lines_per_shard", 2)
        call_recipe("translate.py", *arguments)

    return translate


@pytest.fixture
def divided(translate, source, tmp_path):
    """A directory with the shards of `source`."""
    translate("--input", source, "--output", tmp_path / "out.txt", "--work", tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def error(translate, monkeypatch):
    """The one line that the recipe ends with, before a model is loaded."""

    def error(*arguments: object) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(decoding.DecodingArguments, "load", lambda *_: pytest.fail("the model was loaded"))
            with pytest.raises(SystemExit) as stop:
                translate(*arguments)
        message = str(stop.value.code)
        assert message.startswith("translate.py: ")
        assert len(message.splitlines()) == 1
        return message

    return error


@pytest.mark.parametrize(("name", "options"), SETTINGS.values(), ids=SETTINGS)
def test_shards_in_any_order_give_what_one_command_gives(translate, source, tmp_path, name, options):
    translate("--input", source, "--output", tmp_path / name, *options)
    expected = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    work = tmp_path / "work"
    translate("--input", source, "--output", tmp_path / name, "--work", work, *options)
    source.unlink()
    numbers = list(range(6))
    random.Random(1).shuffle(numbers)
    translate("--work", work, "--shard", *numbers[:2])
    translate("--work", work, "--shard", numbers[2])
    translate("--work", work)  # all that are missing
    assert len(list(work.glob("shard-*"))) == 6
    translate("--work", work, "--collect")
    assert (tmp_path / name).read_bytes() == expected


def test_second_attempt_gives_the_same_bytes_and_a_finished_shard_is_left_alone(translate, divided, monkeypatch):
    translate("--work", divided, "--shard", 4)
    (first,) = divided.glob("shard-000004.*")
    content = first.read_bytes()
    first.unlink()
    translate("--work", divided, "--shard", 4, 5)
    assert first.read_bytes() == content
    before = {path: path.stat().st_mtime_ns for path in divided.iterdir()}
    monkeypatch.setattr("vaswani_transformer.decoding.line_translation.translate_in_batches", None)
    translate("--work", divided, "--shard", 5, 4)
    assert {path: path.stat().st_mtime_ns for path in divided.iterdir()} == before


def test_status_counts_what_is_finished_and_names_what_is_missing(translate, divided, capsys):
    def status() -> list[str]:
        capsys.readouterr()
        translate("--work", divided, "--status")
        return capsys.readouterr().out.splitlines()

    assert status() == ["0 of 6 shards finished", "missing: 0-5"]
    translate("--work", divided, "--shard", 0, 2, 3)
    now = (divided / "manifest.json").stat().st_mtime
    for number, age in ((0, 1200), (2, 600), (3, 300)):
        (path,) = divided.glob(f"shard-00000{number}.*")
        os.utime(path, (now, now - age))
    progress, missing = status()
    # Three shards of two lines; two of them, in 900 seconds, after the first.
    assert progress == "3 of 6 shards finished, the last 5 minutes ago, 0 lines/s, 22 minutes left"
    assert missing == "missing: 1,4-5"
    translate("--work", divided)
    assert len(status()) == 1


def test_the_output_is_of_all_shards_and_replaces_no_other_file(translate, error, divided, tmp_path):
    translate("--work", divided, "--shard", 0, 1, 2, 3, 5)
    assert "work: 1 of 6 shards of" in error("--work", divided, "--collect")
    translate("--work", divided, "--shard", 4)
    (tmp_path / "out.txt").write_bytes(b"mine")
    assert "exists already" in error("--work", divided, "--collect")
    assert (tmp_path / "out.txt").read_bytes() == b"mine"
    translate("--work", divided, "--collect", "--overwrite")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").count("\n") == len(LINES)
    translate("--work", divided, "--collect", "--output", tmp_path / "elsewhere.txt")
    assert (tmp_path / "elsewhere.txt").read_bytes() == (tmp_path / "out.txt").read_bytes()
    message = error("--work", divided, "--collect", "--output", tmp_path / "elsewhere.jsonl")
    assert "the shards have lines of text; name an output that is no table" in message
    assert "output: there is no directory" in error("--work", divided, "--collect", "--output", tmp_path / "no" / "out")
    (shard,) = divided.glob("shard-000003.*")
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    assert "shard 3 of" in error("--work", divided, "--collect", "--overwrite")
    assert not shard.exists()


def test_output_goes_to_standard_output_if_no_file_is_named(translate, source, tmp_path, capsysbinary):
    translate("--input", source, "--work", tmp_path / "work")
    translate("--work", tmp_path / "work")
    capsysbinary.readouterr()
    translate("--work", tmp_path / "work", "--collect")
    assert capsysbinary.readouterr().out.count(b"\n") == len(LINES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--work {folder}/none --shard 0", "work: {folder}/none holds no shards; divide a file into it with --input"),
        ("--work {work} --shard 6", "shard: 6 is none of {work}; name one from 0 to 5"),
        ("--work {work} --shard -1", "shard: must be at least 0"),
        ("--work {work} --shard 0 --num_beams 2", "num_beams: was decided when {work} was divided; leave it out"),
        ("--work {work} --status --collect", "collect: is another command than --status; give one at a time"),
        ("--input {folder}/in.txt --output {folder}/o --work {work}", "work: {work} has an input already"),
        ("--input {folder}/in.txt --output {folder}/o --work {work} --shard 0", "shard: first divide the input by"),
        ("--status", "status: is of a directory of shards; name it with --work"),
        ("--input {folder}/in.txt --output {folder}/o --work {folder}", "work: {folder}, needed for shards, has other"),
    ],
)
def test_what_cannot_be_done_leaves_the_shards_as_they_are(error, divided, tmp_path, options, message):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    given = [option.format(folder=tmp_path, work=divided) for option in options.split(" ")]
    assert message.format(folder=tmp_path, work=divided) in error(*given)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_no_model_is_named(error, source):
    assert "model: name a saved model with --model" in error("--output", source.with_name("out"))


@pytest.mark.parametrize("name", ["source.spm", "merges.txt", "target_vocab.json"])
def test_every_file_of_a_tokenizer_counts_for_the_digest(lively_model, tmp_path, name):
    model, options = shutil.copytree(lively_model, tmp_path / "model"), TranslationOptions()
    digests = {options.model_digest(model)}
    for content in ("a", "b"):
        (model / name).write_text(content, encoding="utf-8")
        digests.add(options.model_digest(model))
    assert len(digests) == 3


def test_model_may_have_moved_but_must_be_the_same(translate, error, divided, saved_model, lively_model, tmp_path):
    shutil.copytree(lively_model, tmp_path / "moved")
    manifest = json.loads((divided / "manifest.json").read_text(encoding="utf-8"))
    manifest["place"] = str(tmp_path / "gone")
    (divided / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert "gone is no saved model" in error("--work", divided, "--shard", 0)
    assert "or what translates with it changed after the input was divided; they differ in model" in error(
        "--work", divided, "--shard", 0, "--model", saved_model
    )
    translate("--work", divided, "--shard", 0, "--model", tmp_path / "moved")


def test_models_of_an_ensemble_must_be_the_same(translate, error, source, lively_model, tmp_path):
    second, work = shutil.copytree(lively_model, tmp_path / "second"), tmp_path / "work"
    translate("--input", source, "--work", work, "--ensemble", second)
    translate("--work", work, "--shard", 0)
    path = second / "generation_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "num_beams": 2}), encoding="utf-8")
    assert "or what translates with it changed after the input was divided; they differ in ensemble" in error(
        "--work", work, "--shard", 1
    )


@pytest.mark.parametrize("damage", [b"{", b'{"lines": "many"}', b'{"lines": 12, "lines_per_shard": 2}'])
def test_damaged_manifest_is_one_line(error, divided, damage):
    (divided / "manifest.json").write_bytes(damage)
    message = error("--work", divided, "--shard", 0)
    assert f"; delete {divided} to start from the beginning" in message


@pytest.mark.parametrize("damage", [b"", b"one line\n", b"one\ntwo\nthree\n", b"\xff\n\n", None])
def test_lines_that_were_changed_after_the_division_are_refused(translate, error, divided, damage):
    path = divided / "source-000002.txt"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    translate("--work", divided, "--shard", 1)
    with pytest.raises(
        SystemExit, match=r"source-000002.txt was changed or removed after the input was divided; delete"
    ):
        translate("--work", divided, "--shard", 2)
    with pytest.raises(SystemExit, match=r"5 of 6 shards of .* are not finished"):
        translate("--work", divided, "--collect")


def test_scores_and_alignment_chosen_meanwhile_change_no_translation(translate, source, lively_model, tmp_path):
    model = shutil.copytree(lively_model, tmp_path / "model")
    arguments = ("--model", model, "--output", tmp_path / "out", "--work", tmp_path / "work", "--lines_per_shard", 6)
    call_recipe("translate.py", "--input", source, *arguments)
    open_model(model).update_config(confidence_curve=[[-1.0, 2.0]], alignment_heads=[[0, 0]], alignment_shift=True)
    translate("--work", tmp_path / "work", "--shard", 0)
    with_scores = ("--output", tmp_path / "out.jsonl", "--work", tmp_path / "scored", "--return_scores")
    call_recipe("translate.py", "--input", source, "--model", model, *with_scores)
    open_model(model).update_config(confidence_curve=[[-1.0, 3.0]])
    translate("--work", tmp_path / "work", "--shard", 0)
    with pytest.raises(SystemExit, match="changed after the input was divided; they differ in model"):
        translate("--work", tmp_path / "scored", "--shard", 0)
    open_model(model).update_config(layer_norm_eps=0.5)
    with pytest.raises(SystemExit, match="changed after the input was divided; they differ in model"):
        translate("--work", tmp_path / "work", "--shard", 1)


@pytest.mark.parametrize("arguments", [["--shard", 0], ["--status"], ["--collect"], []])
def test_a_directory_without_shards_is_one_line(error, tmp_path, arguments):
    assert f"work: {tmp_path / 'none'} holds no shards; divide a file" in error("--work", tmp_path / "none", *arguments)


def test_rows_of_tables_are_lines(translate, error, source, tmp_path):
    rows = [{"en": line, "other": str(number)} for number, line in enumerate(LINES)]
    rows[3]["en"] = rows[3]["en"].replace(" ", "\n", 1)  # still one line
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    translate("--input", source, "--output", tmp_path / "expected")
    for name in ("in.jsonl", "in.parquet", "saved"):
        translate("--input", tmp_path / name, "--column", "en", "--output", tmp_path / f"{name}.out")
        assert (tmp_path / f"{name}.out").read_bytes() == (tmp_path / "expected").read_bytes()
        message = error("--input", tmp_path / name, "--column", "fr", "--output", tmp_path / "none")
        assert "there is no column 'fr', only" in message


@pytest.mark.parametrize("name", ["in.csv", "in.tsv"])
def test_empty_lines_of_a_single_column_are_lines(tmp_path, name):
    (tmp_path / name).write_bytes(b"en\r\nfirst\r\n\r\nthird\r\n\r\n")
    assert [*input_lines(str(tmp_path / name), None, "en")] == ["first", "", "third", ""]
    (tmp_path / name).write_bytes(b"\n\nfirst\n\nthird\n")
    assert [*input_lines(str(tmp_path / name), "1", "en")] == ["", "", "first", "", "third"]


def test_shards_done_from_python(divided):
    """As engines of a cluster do it."""
    work = ShardedTranslation(divided)
    assert work.progress().missing == [0, 1, 2, 3, 4, 5]
    work.translate(2)
    assert ShardedTranslation(divided).progress().missing == [0, 1, 3, 4, 5]
