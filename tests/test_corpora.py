import hashlib
import os
from pathlib import Path

import pytest
from corpus_folder import COMPRESS, PAIRS, error_of, load
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st

from vaswani_transformer.data import sources
from vaswani_transformer.data.corpora import evenly_spaced, load_parallel_corpus
from vaswani_transformer.data.phrasebook import SPLIT_SIZES, phrasebook
from vaswani_transformer.data.sources import EmbeddedCorpus, HubDataset, Tables, TextFiles, find_source
from vaswani_transformer.data.supplement import supplement
from vaswani_transformer.data.text_files import read_lines


@pytest.mark.parametrize("suffixes", [("", ""), (".gz", ".gz"), (".xz", ".zst"), ("", ".GZ"), (".Xz", ".bz2")])
def test_text_files_pair_line_by_line_at_line_feeds_only(folder, suffixes):
    assert load(*folder.pair(suffixes)) == PAIRS


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("one\ntwo", ["one", "two"]),
        ("\ufeffone\n\ufefftwo\n", ["one", "two"]),  # as `cat` leaves two files with marks
        ("\ufeff", [""]),
        ("one\r\ntwo\r\r\n", ["one", "two\r"]),
        ("\ufeffone\rtwo\r\rthree\r", ["one", "two", "", "three"]),
        ("one\rtwo", ["one", "two"]),
        ("a\u2028b\u0085c\x0bd\x1ce\rf\0g\r\n", ["a\u2028b\u0085c\x0bd\x1ce\rf\0g"]),
    ],
)
def test_lines_end_at_line_feeds_or_in_a_file_without_any_at_carriage_returns(folder, content, lines):
    assert list(read_lines(Path(folder.raw("a", content.encode())))) == lines


def test_a_changed_file_is_read_again_though_its_size_is_the_same(folder):
    for word in ("old", "new"):
        assert load(folder.json("a.json", [{"en": word, "de": "x"}])) == [(word, "x")]


@pytest.mark.parametrize("is_nested", [True, False])
def test_other_names_are_datasets_of_the_hub(monkeypatch, is_nested):
    """The Hub itself cannot be asked here, so this stands in for it."""

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        pairs = [{"en": english, "de": german} for english, german in PAIRS]
        return Dataset.from_list([{"translation": pair} for pair in pairs] if is_nested else pairs)

    asked: list[tuple] = []
    monkeypatch.setattr("vaswani_transformer.data.sources.load_dataset", load_dataset)
    assert load("wmt/wmt14", split="validation", config="de-en") == PAIRS
    assert asked == [(("wmt/wmt14", "de-en"), {"split": "validation"})]


def test_what_is_no_file_is_of_the_hub(folder):
    texts, table = folder.pair(), folder.json("a.jsonl", [])
    assert find_source("wmt/wmt14") == find_source(["wmt/wmt14"]) == HubDataset("wmt/wmt14")
    assert find_source("phrasebook") == EmbeddedCorpus("phrasebook")
    assert find_source(texts) == TextFiles(" and ".join(texts), *map(Path, texts))
    for name in (table, "gone.tsv", "gone.tmx.gz", "x/part-*.parquet"):
        assert find_source(name) == find_source(Path(name)) == Tables(name, (Path(name),))


def test_a_pattern_and_a_saved_directory_are_recorded_as_their_files(folder):
    rows = Dataset.from_list([{"en": "one", "de": "eins"}])
    for number in (2, 0, 1):
        folder.parquet(f"part-{number}.parquet", rows.to_list())
    DatasetDict(train=rows, test=rows).save_to_disk(folder.path / "saved")
    (folder.path / "saved" / "test" / "cache-1.arrow").write_bytes(b"of datasets.map")
    source = find_source([folder.path / "part-*.parquet", folder.path / "saved"])
    parts = [folder.path / f"part-{number}.parquet" for number in range(3)]
    saved = folder.path / "saved" / "test" / "data-00000-of-00001.arrow"
    assert [Path(entry["file"]) for entry in source.identify("test")] == [*parts, saved]


def test_several_files_in_one_zstandard_file_are_read_to_the_end(folder):
    compress = COMPRESS[".zst"]
    name = folder.raw("a.zst", compress(b"one\n") + compress(b"two\n" * 100_000))
    assert list(read_lines(Path(name))) == ["one", *["two"] * 100_000]


def test_rows_lie_in_the_given_cache_and_are_read_once(folder, monkeypatch):
    names, cache = folder.pair(), folder.path / "cache"
    first = load_parallel_corpus(names, "en", "de", cache_dir=cache)
    assert {Path(file["filename"]).is_relative_to(cache) for file in first.cache_files} == {True}
    monkeypatch.setattr(sources, "read_lines", lambda _: pytest.fail("a file was read"))
    assert load(*names, cache_dir=cache) == PAIRS


@given(st.integers(1, 200), st.integers(1, 250))
def test_a_sample_is_spread_evenly(length, count):
    chosen = evenly_spaced(length, count).tolist()
    assert len(chosen) == min(length, count)
    assert chosen == sorted(set(chosen))
    gaps = [after - before for before, after in zip(chosen, [*chosen[1:], length], strict=True)]
    assert max(gaps) - min(gaps) <= 1
    assert chosen[0] == 0


# Embedded corpora.


@pytest.mark.parametrize(("name", "corpus"), [("phrasebook", phrasebook), ("supplement", supplement)])
def test_embedded_corpora_are_in_english_and_german_alone(name, corpus):
    pairs = corpus("test")
    assert load(name, split="test") == pairs
    assert load(name, split="test", languages=("de", "en")) == [pair[::-1] for pair in pairs]
    assert error_of(name, languages=("en", "fr")) == f"{name}: is in English and German, en and de, not en and fr"
    assert error_of(name, split="dev") == f"{name}: has no split 'dev', only train, validation, test"


def test_a_changed_supplement_is_read_again(monkeypatch):
    for pairs in ([("old", "x")], [("new", "x")]):
        monkeypatch.setitem(sources._EMBEDDED, "supplement", {"train": pairs}.get)
        assert load("supplement") == pairs


def test_the_phrasebook_is_that_of_all_published_results():
    digest = hashlib.sha256(repr([phrasebook(split) for split in SPLIT_SIZES]).encode()).hexdigest()
    assert digest == "e9a149648415bd236d984d6b8f0562f7691a85f82a19b7dd50b4146a9adde756"


# Errors: one line each, naming the file, the line or the argument.


def test_misaligned_files_are_refused_with_their_lengths(folder):
    english, german = folder.lines("a", ["one", "two"]), folder.lines("b", ["eins", "zwei", "drei"])
    assert error_of(english, german).startswith(f"{english} has 2 lines but {german} has 3; line n of one must")
    assert error_of(german, english).startswith(f"{german} has 3 lines but {english} has 2; line n of one must")


def test_text_that_is_not_utf8_is_refused_with_its_line(folder):
    good = folder.lines("a.txt", ["one", "two", "three"])
    bad = folder.raw("b.gz", COMPRESS[".gz"](b"one\ntwo\nthr\xe9e\n"))
    assert error_of(good, bad).startswith(f"{bad}, line 3: not UTF-8")


@pytest.mark.parametrize("damage", ["cut", "not an archive", "garbled"])
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_damaged_archive_is_refused(folder, damage, suffix):
    whole = COMPRESS[suffix]("".join(f'{{"en": "{n}", "de": "b"}}\n' for n in range(1000)).encode())
    content = {
        "cut": whole[: len(whole) // 2],
        "not an archive": b"one\ntwo\n",
        "garbled": whole[:20] + b"\xff" * (len(whole) - 40) + whole[-20:],
    }[damage]
    bad = folder.raw(f"a.jsonl{suffix}", content)
    assert error_of(bad).startswith(f"{bad}: not a whole {suffix} file")


def test_a_zip_is_named_as_one(folder):
    zipped = folder.raw("a.en.ZIP", b"PK\x03\x04\xff")
    for names in ([zipped, folder.lines("a.de", ["eins"])], [folder.json("a.json.zip", [])]):
        message = error_of(*names)
        assert names[0] in message
        assert "unzip it" in message or "unpack a .zip" in message


def test_a_missing_file_is_named(folder):
    english, german = folder.pair((".gz", ""))
    os.remove(german)
    table = str(folder.path / "a.jsonl.gz")
    for names, missing in (((english, german), german), ((table,), table)):
        assert f"No such file or directory: '{missing}'" in error_of(*names, error_class=FileNotFoundError)
    assert "'nothing.en' on the Hub" in error_of("nothing.en", error_class=ConnectionError)


def test_files_that_are_no_table_and_no_pair_of_texts_are_refused(folder):
    names = [folder.lines(f"{number}.en", ["one"]) for number in range(3)]
    for few_or_many in ([], names[:1], names, [names[0], folder.json("a.jsonl", [])]):
        shown = " and ".join(few_or_many) or "nothing"
        assert error_of(*few_or_many).startswith(f"{shown}: a corpus is two aligned text files, ")


def test_a_corpus_without_sentences_is_refused_with_the_names_of_its_files(folder):
    names = [folder.lines(f"a.{side}.gz", ["", " "]) for side in ("en", "de")]
    assert error_of(*names).startswith(f"{' and '.join(names)}: the corpus is empty; give files with at least one")
