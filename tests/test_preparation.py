"""The reference is the other way to the same rows: `clean_corpus(encode_corpus(load_parallel_corpus(...)))`."""

import errno
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import Dataset
from helpers import change_json
from transformers import AutoTokenizer

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data import preparation
from vaswani_transformer.data.cleaning import clean_corpus, encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus, sentences
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.data.preparation import load_corpora
from vaswani_transformer.data.prepared_directory import load_prepared
from vaswani_transformer.options.data import DataArguments
from vaswani_transformer.system.files import locked


# With rows that cleaning drops, at the beginning, in the middle and at the end.
PAIRS = [
    ("", "Leer."),
    *phrasebook("train")[:30],
    ("Yes.", "Ja " * 60),
    *phrasebook("train")[30:60],
    ("A " * 400, "Ein"),
]
HELD_OUT = [("  A dog. ", "Ein Hund."), ("", ""), *phrasebook("test")[:9]]


@pytest.fixture
def files(folder) -> dict[str, list[str]]:
    """Aligned text files, by split."""
    return {
        split: [
            folder.lines(f"{split}.{side}.gz", list(texts))
            for side, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True)
        ]
        for split, pairs in (("train", PAIRS), ("test", HELD_OUT))
    }


@pytest.fixture
def output(tmp_path) -> Path:
    return tmp_path / "prepared"


def arguments(files: dict[str, list[str]], **changes) -> DataArguments:
    languages = {"source_language": "en", "target_language": "de"}
    return DataArguments(**{**languages, "vocab_size": 300, **files, **changes})


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """The content and the time of change of every file below a directory, except the text in `cache`."""
    files = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    kept = {name: path for name, path in files.items() if not name.startswith("cache/")}
    return {name: (path.read_bytes(), path.stat().st_mtime_ns) for name, path in kept.items()}


def row_bytes(directory: Path) -> dict[str, bytes]:
    """The files of a directory that hold rows."""
    return {name: content for name, (content, _) in contents(directory).items() if name.endswith(".arrow")}


def error_of(output: Path, args: DataArguments) -> str:
    """The message of the error; nothing in the directory may change."""
    before = contents(output)
    with pytest.raises(ValueError, match=r"^prepared: ") as error:
        load_corpora(args, output)
    assert contents(output) == before
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("limits", [(256, 5.0), (12, 1.5)])
def test_the_rows_are_those_of_the_corpus_encoded_and_cleaned(files, output, limits):
    data = load_corpora(arguments(files, max_length=limits[0], max_ratio=limits[1]), output)
    tokenizer = AutoTokenizer.from_pretrained(output / "tokenizer")
    corpus = load_parallel_corpus(files["train"], "en", "de")
    expected, totals = clean_corpus(encode_corpus(corpus, tokenizer, "en", "de"), *limits)
    assert data.train.to_list() == expected.to_list()
    assert data.cleaning == {"train": totals}
    if limits == (256, 5.0):
        assert totals == {"empty": 1, "too_long": 1, "ratio": 1, "kept": 60}
    table = data.train.with_format("arrow")[:1]
    assert [str(table[name].type).split(": ")[-1].rstrip(">") for name in table.column_names] == ["int32"] * 4


def test_what_is_scored_on_keeps_every_row_and_its_text(files, output):
    data = load_corpora(arguments(files), output)
    corpus = load_parallel_corpus(files["test"], "en", "de")
    assert data.text["test"].to_list() == corpus.to_list()
    assert list(sentences(data.text["test"], ["de"])) == [german for _, german in HELD_OUT]
    assert data.encoded["test"].to_list() == encode_corpus(corpus, data.tokenizer, "en", "de").to_list()
    assert data.text.keys() == data.encoded.keys() == {"test"}


def test_held_out_sentences_that_the_training_corpus_has_are_counted(files, folder, output):
    """Also if the training corpus was prepared before."""
    validation = [folder.lines(f"b.{side}", [text]) for side, text in zip(("en", "de"), PAIRS[5], strict=True)]
    load_corpora(arguments(files, both_directions=True), output)
    data = load_corpora(arguments({**files, "validation": validation}, both_directions=True), output)
    assert data.in_train == {
        "validation": {"sentences": 1, "pairs": 1, "sources": 1, "targets": 1},
        "test": {"sentences": 10, "pairs": 0, "sources": 0, "targets": 0},
    }


def test_corpora_mixed_in_are_cleaned_and_lie_behind_the_training_corpus(files, folder, output):
    english, german = phrasebook("validation")[0]
    synthetic = folder.csv("synthetic.csv", [["en", "de"], *phrasebook("validation")[:10]])
    args = arguments({**files, "replay": files["train"], "synthetic": [synthetic]}, replay_ratio=0.25)
    data = load_corpora(args, output)
    replay, synthetic = data.mixed["replay"], data.mixed["synthetic"]
    assert (replay.first, replay.pairs, replay.drawn) == (60, 60, 15)
    assert data.cleaning["replay"] == data.cleaning["train"]
    assert (synthetic.first, synthetic.pairs, synthetic.drawn) == (120, 10, 60)
    rows = data.train.to_list()
    assert rows[60:120] == rows[:60]
    assert rows[120]["input_ids"] == data.tokenizer(english).input_ids
    assert rows[120]["labels"] == data.tokenizer(german).input_ids
    assert data.text.keys() == {"test"}


def test_the_vocabulary_is_learned_from_the_whole_corpus_or_a_sample_of_it(files, folder, output):
    for sample, pairs in ((1_000_000, PAIRS), (21, PAIRS[::3])):
        data = load_corpora(arguments(files, tokenizer_sample=sample), output)
        text = (sentence for pair in pairs for sentence in pair)
        expected = VaswaniTokenizer.train(text, 300, show_progress=False)
        assert data.tokenizer.get_vocab() == expected.get_vocab()
        shutil.rmtree(output)


def test_a_tokenizer_that_is_given_is_used(files, output, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "given")
    args = arguments(files, tokenizer=str(tmp_path / "given"), vocab_size=DataArguments.vocab_size)
    data = load_corpora(args, output)
    assert data.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert data.train["input_ids"][0] == tokenizer(PAIRS[1][0]).input_ids

    change_json(tmp_path / "given" / "tokenizer_config.json", model_max_length=77)
    assert "differs in tokenizer" in error_of(output, args)


# A second start, an interruption, a change.


def test_a_second_start_with_files_of_the_same_content_writes_nothing(files, output, tmp_path):
    load_corpora(arguments(files), output)
    before = contents(output)
    os.utime(files["train"][0], ns=(0, 0))
    elsewhere = [shutil.copy(name, tmp_path / f"copy-{number}.gz") for number, name in enumerate(files["test"])]
    load_corpora(arguments({**files, "test": [str(name) for name in elsewhere]}), output)
    assert contents(output) == before
    assert not (output / "cache").exists()


def test_after_a_full_disk_only_the_rest_is_done(files, output, tmp_path, monkeypatch):
    save = Dataset.save_to_disk

    def full_disk(rows: Dataset, path: Path, **kwargs) -> None:
        if "test" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(rows, path, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "save_to_disk", full_disk)
        with pytest.raises(OSError, match=r"^prepared: cannot write .*/test: .*No space left on device"):
            load_corpora(arguments(files), output)
    with pytest.raises(ValueError, match=r"/test: there is no file or directory .*; delete "):
        load_prepared(output, ["test"])
    finished = contents(output)
    assert {name.split("/")[0] for name in finished} == {"tokenizer", "train"}
    load_corpora(arguments(files), output)
    now = contents(output)
    assert all(now[name] == finished[name] for name in finished)
    load_corpora(arguments(files), tmp_path / "whole")
    assert row_bytes(output) == row_bytes(tmp_path / "whole")


@pytest.mark.system
def test_the_rows_do_not_depend_on_the_number_of_processes(files, output, tmp_path, monkeypatch):
    load_corpora(arguments(files), output)
    monkeypatch.setattr(preparation, "_PAIRS_PER_PROCESS", 40)
    load_corpora(arguments(files, num_proc=2), tmp_path / "many")
    alone, together = (load_prepared(directory, ["test"]) for directory in (output, tmp_path / "many"))
    assert len(list((tmp_path / "many" / "train").glob("*.arrow"))) == 2
    assert together.train.to_list() == alone.train.to_list()
    assert together.encoded["test"].to_list() == alone.encoded["test"].to_list()


def test_a_second_process_waits_for_the_first_and_finds_all_done(files, output, tmp_path):
    load_corpora(arguments(files), tmp_path / "first")
    output.mkdir()
    second = threading.Thread(target=lambda: load_corpora(arguments(files), output), daemon=True)
    with locked(output / "prepared", "prepared"):
        second.start()
        second.join(1)
        assert second.is_alive()
        shutil.copytree(tmp_path / "first", output, dirs_exist_ok=True)
    second.join(60)
    assert contents(output / "train") == contents(tmp_path / "first" / "train")
    assert not (output / "cache").exists()


def test_columns_are_two(files):
    with pytest.raises(ValueError, match=r"^columns: name two, of the source and the target, not 3"):
        arguments(files, columns=["en", "de", "id"])


def test_another_test_set_can_be_had_without_preparing_the_rest_anew(files, folder, output):
    load_corpora(arguments({"train": files["train"]}), output)
    train = contents(output / "train")
    load_corpora(arguments(files), output)  # one more
    other = {"test": [folder.lines("b.en", ["One."]), folder.lines("b.de", ["Eins."])]}
    message = error_of(output, arguments({**files, **other}))
    assert message.endswith(f"or delete {output / 'test'} to prepare that anew")
    shutil.rmtree(output / "test")
    load_corpora(arguments({**files, **other}), output)
    assert list(sentences(load_prepared(output, ["test"]).text["test"], ["en", "de"])) == ["One.", "Eins."]
    assert contents(output / "train") == train


# Without a directory.


def test_without_a_directory_it_is_prepared_once_in_the_cache_for_each_version(files, output, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    first, expected = load_corpora(arguments(files)), load_corpora(arguments(files), output)
    assert first.train.to_list() == expected.train.to_list()
    assert first.encoded["test"].to_list() == expected.encoded["test"].to_list()
    before = contents(tmp_path / "cache")
    assert load_corpora(arguments(files)).train.to_list() == expected.train.to_list()
    assert contents(tmp_path / "cache") == before
    load_corpora(arguments(files, max_length=12))
    monkeypatch.setattr(preparation, "version", lambda name: f"{name} of tomorrow")
    load_corpora(arguments(files))
    assert len(list((tmp_path / "cache" / "vaswani_transformer").iterdir())) == 3


# Errors.


def test_damaged_files_are_named_and_can_be_prepared_anew(files, output):
    load_corpora(arguments(files), output)
    parts = (output / "tokenizer", output / "train", output / "test")
    for file in [path for part in parts for path in part.iterdir()]:
        content = file.read_bytes()
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(ValueError, match=rf"^prepared: {file.parent}: .*{file.name} .*; delete "):
            load_prepared(output, ["train", "test"])
        file.write_bytes(content)
    expected, vocabulary = row_bytes(output), load_prepared(output).tokenizer.get_vocab()
    for part in parts[:2]:
        shutil.rmtree(part)
        with pytest.raises(ValueError, match=rf"^prepared: {part}: there is no file or directory .*; delete "):
            load_prepared(output)
        load_corpora(arguments(files), output)
        assert row_bytes(output) == expected
        assert load_prepared(output).tokenizer.get_vocab() == vocabulary


def test_the_beginning_of_every_file_is_read_before_any_to_its_end(files, folder, output):
    text = [files["test"][0], folder.raw("bad.de", b"f\xfcnf\n")]
    table = [folder.parquet("a.parquet", [{"en": "x", "de": "x"}]), folder.raw("bad.parquet", b"PAR1x")]
    for bad in (text, table):
        with pytest.raises(ValueError, match=r"/bad"):
            load_corpora(arguments({**files, "test": bad}), output)
    assert not (output / "cache").exists()


def test_both_directions_alternate_and_begin_with_the_tag_of_their_target(files, output):
    args = arguments({**files, "synthetic": files["train"]}, both_directions=True)
    data = load_corpora(args, output)
    tokenizer = AutoTokenizer.from_pretrained(output / "tokenizer")
    assert len(tokenizer) == args.vocab_size
    assert data.language_tags == {code: tokenizer.convert_tokens_to_ids(f"<2{code}>") for code in ("en", "de")}
    expected = []
    for english, german in PAIRS[1:31] + PAIRS[32:62]:  # what cleaning keeps
        for tag, source, target in (("<2de>", english, german), ("<2en>", german, english)):
            expected.append((tokenizer(f"{tag} {source}").input_ids, tokenizer(target).input_ids))
    rows = list(zip(data.train["input_ids"], data.train["labels"], strict=True))
    assert rows == expected + expected[::2], "synthetic pairs are not reversed"
    assert {source[0] for source, _ in expected} == {*data.language_tags.values()}
    assert data.cleaning["train"]["empty"] == 2

    assert data.text.keys() == data.encoded.keys() == {"test", "test_reverse"}
    for split, (source, target), tag in (("test", ("en", "de"), "<2de> "), ("test_reverse", ("de", "en"), "<2en> ")):
        pairs = list(data.text[split]["translation"])
        assert [(pair["en"], pair["de"]) for pair in pairs] == HELD_OUT
        for pair, row in zip(pairs, data.encoded[split], strict=True):
            text = pair[source].strip()
            assert row["input_ids"] == tokenizer(tag + text if text else "").input_ids
            assert row["labels"] == tokenizer(pair[target].strip()).input_ids
    with pytest.raises(ValueError, match="both_directions"):
        load_corpora(replace(args, both_directions=False), output)


@pytest.mark.parametrize("directions", [1, 2])
def test_only_the_training_corpus_is_augmented_in_each_direction(files, output, directions):
    files = {**files, "replay": files["train"]}
    args = arguments(files, augment=0.2, both_directions=directions == 2)
    data = load_corpora(args, output)
    added = directions * round(0.2 * len(PAIRS))
    counts = data.cleaning["train"]
    assert counts.pop("augmented") == added
    assert sum(counts.values()) == directions * len(PAIRS) + added
    assert len(data.encoded["test"]) == len(HELD_OUT)
    assert data.cleaning["replay"]["kept"] == 60 * directions

    texts = data.tokenizer.batch_decode(data.train["input_ids"][:], skip_special_tokens=True)
    sources = [text.strip() for text in texts]
    expected = [text for pair in PAIRS[1:31] + PAIRS[32:62] for text in pair[:directions]]
    assert sources[: len(expected)] == sources[counts["kept"] :] == expected
    assert not set(sources) <= set(expected)
