"""Treebanks as parallel corpora: what is written, and that another origin is refused."""

import json

import pytest

from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.model.parse_sequence_vaswani import ParseLabels
from vaswani_transformer.options.data import TreebankOptions
from vaswani_transformer.parsing import treebank
from vaswani_transformer.parsing.tokenizer import VaswaniParsingTokenizer
from vaswani_transformer.parsing.treebank import prepare_treebank


GOLD = "((S (NP-SBJ (NNP Mary)) (VP (VBZ sleeps)) (. .)))\n((S (NP (DT The) (NN cat)) (VP (VBZ purrs)) (. .)))\n"
SILVER = "((S (VP (VB Go)) (. !)))\n((S (NP (-NONE- *))))\n"


@pytest.fixture
def options(tmp_path):
    for name, text in (("gold", GOLD), ("silver", SILVER), ("dev", GOLD)):
        (tmp_path / f"{name}.mrg").write_text(text, encoding="utf-8")
    paths = {name: [str(tmp_path / f"{name}.mrg")] for name in ("gold", "silver", "dev")}
    return {"train": paths["gold"], "silver": paths["silver"], "validation": paths["dev"], "vocab_size": 282}


def rows(path) -> list[dict[str, str]]:
    return [json.loads(line)["translation"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_gold_trees_count_several_times_beside_silver_ones(options, tmp_path):
    corpora = prepare_treebank(tmp_path / "bank", TreebankOptions(**options, gold_copies=2))
    assert corpora == {split: [str(tmp_path / "bank" / f"{split}.jsonl")] for split in ("train", "validation")}
    mary = {"en": "Mary sleeps .", "parse": "S NP NNP /NP VP VBZ /VP . /S"}
    cat = {"en": "The cat purrs .", "parse": "S NP DT NN /NP VP VBZ /VP . /S"}
    go = {"en": "Go !", "parse": "S VP VB /VP . /S"}
    assert rows(tmp_path / "bank" / "train.jsonl") == [mary, mary, cat, cat, go]
    assert rows(tmp_path / "bank" / "validation.jsonl") == [mary, cat]


def test_words_and_labels_have_their_own_vocabularies(options, tmp_path):
    corpora = prepare_treebank(tmp_path / "bank", TreebankOptions(**options))
    tokenizer = VaswaniParsingTokenizer.from_pretrained(tmp_path / "bank" / "tokenizer")
    labels = ParseLabels.from_vocabulary(tokenizer.get_vocab())
    assert labels.tags == {"NNP", "VBZ", "DT", "NN", "VB", "."}
    assert labels.phrases == {"S", "NP", "VP"}
    last = 2 + len(labels.names)
    corpus = load_parallel_corpus(corpora["train"], "en", "parse", cache_dir=tmp_path / "cache")
    for row in encode_corpus(corpus, tokenizer, "en", "parse"):
        assert all(number > last for number in row["input_ids"][:-1])
        assert all(2 < number <= last for number in row["labels"][:-1])
        assert row["input_ids"][-1] == row["labels"][-1] == tokenizer.eos_token_id


def test_a_prepared_treebank_is_used_again_or_refused(options, tmp_path, monkeypatch):
    directory = tmp_path / "bank"
    corpora = prepare_treebank(directory, TreebankOptions(**options))
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    assert prepare_treebank(directory, TreebankOptions(**options)) == corpora
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before
    with pytest.raises(ValueError, match=r"gold_copies \(1 then, 3 now\); name another directory"):
        prepare_treebank(directory, TreebankOptions(**options, gold_copies=3))
    with monkeypatch.context() as later:
        later.setattr(treebank, "_FORMAT", 99)
        with pytest.raises(ValueError, match=r"format \(\d+ then, 99 now\)"):
            prepare_treebank(directory, TreebankOptions(**options))
    (tmp_path / "gold.mrg").write_text(GOLD + GOLD, encoding="utf-8")
    with pytest.raises(ValueError, match=r"train \(.*gold.mrg then, .*gold.mrg now\)"):
        prepare_treebank(directory, TreebankOptions(**options))
    (directory / "train.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"train.jsonl has 0 bytes instead of"):
        prepare_treebank(directory, TreebankOptions(**options))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("((S (NP (-NONE- *))))\n", "bad.mrg has no trees"),
        ("((S (NP (NN a))))\n((NP (S b)))\n", "the label 'S' is used as a part-of-speech tag and as a phrase"),
        ("((S (NN a))\n", "bad.mrg, line 1"),
    ],
)
@pytest.mark.parametrize("split", ["train", "silver", "validation"])
def test_nothing_is_written_from_a_bad_treebank(split, text, message, options, tmp_path):
    (tmp_path / "bad.mrg").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        prepare_treebank(tmp_path / "bank", TreebankOptions(**{**options, split: [str(tmp_path / "bad.mrg")]}))
    assert not (tmp_path / "bank").exists()
