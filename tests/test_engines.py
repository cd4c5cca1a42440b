"""Exports in place of the model, in translate.py: the same translations as by the engine alone."""

import json
from pathlib import Path

import pytest
import torch
from helpers import call_recipe
from models import distinct
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import warning_once

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook


ctranslate2 = pytest.importorskip("ctranslate2")

from vaswani_transformer.convert.ctranslate2 import CTranslate2Translator, export_ctranslate2  # noqa: E402 - needs it
from vaswani_transformer.convert.engines import ExportedModel  # noqa: E402 - imports it
from vaswani_transformer.model.generation_vaswani import LengthLimit, SearchOptions  # noqa: E402 - as above


LINES = ["", *(english for english, _ in phrasebook("validation")[:7]), "  spaces around  ", "The end. The cat sleeps."]


@pytest.fixture(scope="module")
def saved(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and in `engine` its export."""
    folder = tmp_path_factory.mktemp("saved")
    model = distinct(len(tokenizer))
    model.generation_config.max_new_tokens_over_source = 5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    export_ctranslate2(model, tokenizer, folder / "engine")
    return folder


def by_engine_alone(directory: Path, lines: list[str]) -> list[str]:
    translator = CTranslate2Translator(directory)
    found = translator.hypotheses(translator.tokenizer([line.strip() for line in lines]).input_ids)
    texts = translator.tokenizer.batch_decode(found, skip_special_tokens=True)
    return [" ".join(text.splitlines()) if line.strip() else "" for line, text in zip(lines, texts, strict=True)]


def test_a_file_is_translated_as_by_the_engine_alone(saved, tmp_path):
    (tmp_path / "input").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    arguments = ("--model", saved, "--input", tmp_path / "input", "--lines_per_shard", 4, "--split_sentences", "false")
    call_recipe("translate.py", *arguments, "--engine", saved / "engine", "--output", tmp_path / "found")
    expected = by_engine_alone(saved / "engine", LINES)
    assert (tmp_path / "found").read_text(encoding="utf-8").split("\n") == [*expected, ""]
    assert len(set(expected)) >= len(expected) - 2


def test_shards_go_on_with_the_same_export_only(saved, tokenizer, tmp_path):
    (tmp_path / "input").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    export_ctranslate2(distinct(len(tokenizer)), tokenizer, tmp_path / "other")
    options = ("--model", saved, "--input", tmp_path / "input", "--output", tmp_path / "found.jsonl")
    options += ("--split_sentences", "false", "--engine")
    call_recipe("translate.py", *options, saved / "engine", "--shard", "0/2")
    with pytest.raises(SystemExit, match=r"part of another translation, which differs in engine \(sha256"):
        call_recipe("translate.py", *options, tmp_path / "other", "--shard", "1/2")
    call_recipe("translate.py", *options, saved / "engine", "--shard", "1/2")
    shards = sorted((tmp_path / "found.jsonl.shards").glob("*-of-*"))
    rows = [json.loads(line) for shard in shards for line in shard.read_text(encoding="utf-8").splitlines()]
    assert [row["target"] for row in rows] == by_engine_alone(saved / "engine", LINES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--num_beams", 2), "num_beams: has no effect here; an engine gives the best translation"),
        (("--precision", "bf16"), "precision: has no effect here; an engine"),
        (("--do_sample",), "do_sample: has no effect here; an engine"),
        (("--engine", "{tmp}"), "engine: .* is no export; make one with recipes/export.py"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(options, message, saved, tmp_path):
    (tmp_path / "input").write_text("A line.\n", encoding="utf-8")
    files = ("--input", tmp_path / "input", "--output", tmp_path / "out")
    given = ("--model", saved, "--engine", saved / "engine", *files)
    with pytest.raises(SystemExit, match=message):
        call_recipe("translate.py", *given, *(str(word).format(tmp=tmp_path) for word in options))
    assert [path.name for path in tmp_path.iterdir()] == ["input"]


def test_a_source_longer_than_the_positions_is_cut_with_a_warning(saved, tokenizer, caplog):
    engine = ExportedModel(saved / "engine", distinct(len(tokenizer)).config, tokenizer, torch.device("cpu"))
    ids = torch.randint(3, len(tokenizer), (2, 5000))
    ids[:, -1] = tokenizer.eos_token_id
    engine.engine.search = SearchOptions(limit=LengthLimit("max_new_tokens", 3))
    warning_once.cache_clear()
    engine.generate(ids[:, -9:], torch.ones(2, 9))
    assert not caplog.records
    found = engine.generate(ids, torch.ones_like(ids))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("a sentence has more tokens than the export takes, 4096; ")
    assert found.shape[0] == 2
    assert found.shape[1] <= 4
    assert found[:, 0].eq(0).all()


def test_an_option_of_the_search_is_refused_because_the_export_has_decided_it(saved, tokenizer):
    engine = ExportedModel(saved / "engine", distinct(len(tokenizer)).config, tokenizer, torch.device("cpu"))
    with pytest.raises(ValueError, match="num_beams: the export has decided how the engine searches; leave it out"):
        engine.generate(torch.tensor([[9, 1]]), torch.ones(1, 2), num_beams=2, length_penalty=None)


def test_an_export_of_another_vocabulary_is_refused(saved, tokenizer):
    shouted = [sentence.upper() for pair in phrasebook("validation") for sentence in pair]
    other = VaswaniTokenizer.train(shouted, len(tokenizer), show_progress=False)
    assert len(other) == len(tokenizer)
    with pytest.raises(ValueError, match=r"engine: .* was not made of this model, which has another vocabulary"):
        ExportedModel(saved / "engine", distinct(50).config, other, torch.device("cpu"))
