import os
from pathlib import Path

import pyarrow as pa
import pytest
from corpus_folder import PAIRS, ROWS, Folder
from datasets import Dataset, DatasetInfo, IterableDataset
from pyarrow import parquet

from vaswani_transformer.data import corpora
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.data.streams import PairStream, open_stream


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def stream(*names: str, languages: tuple[str, str] = ("en", "de"), **kwargs) -> PairStream:
    return open_stream(names, *languages, **kwargs)


def check(found: PairStream, pairs: list[tuple[str, str]]) -> None:
    """Counting and reading do not depend on one another, nor on what was read before."""
    beginning = next(found.read())
    assert found.count() == len(pairs)
    assert list(found.read()) == list(found.read()) == pairs
    assert beginning == pairs[0]


@pytest.mark.parametrize("suffixes", [("", ""), (".gz", ".xz"), (".xz", "")])
def test_text_files_pair_line_by_line(folder, suffixes):
    english, german = folder.pair(suffixes)
    check(stream(english, german), PAIRS)
    check(stream(german, english, languages=("de", "en")), [(german, english) for english, german in PAIRS])


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("nested", [True, False])
def test_tables_have_texts_by_language(folder, kind, nested):
    rows = [{"id": 7, **row} if nested else {"fr": "un", **row["translation"]} for row in ROWS]
    name = getattr(folder, kind)(f"a.{kind}", rows)
    check(stream(name), PAIRS)
    check(stream(name, languages=("de", "en")), [(german, english) for english, german in PAIRS])


def test_a_null_is_an_empty_sentence(folder):
    rows = [{"translation": {"en": None, "de": "b"}}, {"translation": None}, {"translation": {"en": "c", "de": None}}]
    check(stream(folder.parquet("a.parquet", rows)), [("", "b"), ("", ""), ("c", "")])
    check(stream(folder.json("a.jsonl", [rows[0], rows[2]])), [("", "b"), ("c", "")])


def test_a_parquet_file_of_several_row_groups_is_read_to_its_end(folder):
    rows = [{"en": str(number), "de": "x"} for number in range(2500)]
    parquet.write_table(pa.Table.from_pylist(rows), folder.path / "a.parquet", row_group_size=600)
    check(stream(str(folder.path / "a.parquet")), [(row["en"], "x") for row in rows])


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_phrasebook_in_both_directions(split):
    check(stream("phrasebook", split=split), phrasebook(split))
    german_first = [(german, english) for english, german in phrasebook(split)]
    check(stream("phrasebook", languages=("de", "en"), split=split), german_first)


def rows_with_length(length: int | None) -> IterableDataset:
    """What `load_dataset(streaming=True)` gives; `length` is what the Hub says of it, if it does."""
    splits = None if length is None else {"train": {"name": "train", "num_examples": length}}
    info = DatasetInfo.from_dict({"splits": splits}) if splits else None
    found = IterableDataset.from_generator(lambda: iter(ROWS))
    if info:
        found.info.splits = info.splits
    return found


@pytest.mark.parametrize(
    ("table", "streaming"),
    [
        (Dataset.from_list(ROWS), False),
        (Dataset.from_list([row["translation"] for row in ROWS]), False),
        (rows_with_length(None), True),
        (rows_with_length(0), True),
        (rows_with_length(len(ROWS)), True),
    ],
)
def test_other_names_are_datasets_of_the_hub(monkeypatch, table, streaming):
    """The Hub itself cannot be asked here, so this stands in for it."""

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        return table

    asked: list[tuple] = []
    monkeypatch.setattr(corpora, "load_dataset", load_dataset)
    check(stream("wmt/wmt14", config_name="de-en", streaming=streaming), PAIRS)
    options = {"split": "train", "streaming": True} if streaming else {"split": "train"}
    assert asked == [(("wmt/wmt14", "de-en"), options)]


def test_a_dataset_whose_length_the_hub_knows_is_not_read_to_be_counted(monkeypatch):
    monkeypatch.setattr(corpora, "load_dataset", lambda *_, **__: rows_with_length(36_000_000))
    assert stream("wmt/wmt14", streaming=True).count() == 36_000_000


def test_files_are_not_copied_into_the_cache(folder):
    cache = Path(os.environ["HF_DATASETS_CACHE"])
    before = set(cache.rglob("*"))
    for names in (folder.pair((".gz", ".xz")), [folder.json("a.jsonl", ROWS)], [folder.parquet("a.parquet", ROWS)]):
        check(stream(*names), PAIRS)
    assert set(cache.rglob("*")) == before


def test_reading_is_lazy(folder):
    names = folder.raw("a.en", b"one\n\xff\n"), folder.raw("a.de", b"eins\nzwei\n")
    pairs = stream(*names).read()
    assert next(pairs) == ("one", "eins")
    with pytest.raises(ValueError, match=r"a\.en, line 2: not UTF-8"):
        next(pairs)


# Errors: those of load_parallel_corpus.


def error_of(error_class: type[Exception], *names: str, **kwargs) -> str:
    with pytest.raises(error_class) as error:
        stream(*names, **kwargs).count()
    assert error.type is error_class
    message = str(error.value)
    assert "\n" not in message
    return message


def test_misaligned_files_are_refused_with_their_lengths(folder):
    english, german = folder.lines("a.en", ["one", "two"]), folder.lines("a.de", ["eins", "zwei", "drei"])
    for names in ((english, german), (german, english)):
        message = error_of(ValueError, *names)
        assert f"{english} has 2" in message
        assert f"{german} has 3" in message


def test_files_without_a_sentence_are_refused(folder):
    empty = folder.lines("a.en", [])
    assert "the corpus is empty" in error_of(ValueError, empty, folder.lines("a.de", []))
    assert "the corpus is empty" in error_of(ValueError, folder.lines("a.jsonl", [""]))
    parquet.write_table(
        pa.table({"en": pa.array([], pa.string()), "de": pa.array([], pa.string())}), folder.path / "a.parquet"
    )
    assert "the corpus is empty" in error_of(ValueError, str(folder.path / "a.parquet"))


def test_datasets_without_a_sentence_are_refused(monkeypatch):
    for table in (Dataset.from_dict({"en": [], "de": []}), IterableDataset.from_generator(lambda: iter([]))):
        monkeypatch.setattr(corpora, "load_dataset", lambda *_, table=table, **__: table)
        assert error_of(ValueError, "someone/empty").startswith("someone/empty: the corpus is empty")


def test_damaged_parquet_is_refused(folder):
    rows = [{"en": os.urandom(40).hex(), "de": "b"} for _ in range(1000)]
    whole = Path(folder.parquet("whole.parquet", rows)).read_bytes()
    garbled = whole[:100] + b"\xff" * 9000 + whole[9100:]
    for content in (b"", b"nonsense" * 100, whole[:-100], garbled):
        name = folder.raw("a.parquet", content)
        assert error_of(ValueError, name).startswith(f"{name}: not a whole Parquet file")


def test_a_row_that_lacks_a_text_is_named(folder):
    name = folder.parquet("a.parquet", [{"en": "one", "de": "eins"}])
    assert error_of(ValueError, name, languages=("en", "fr")).endswith(
        "row 1: there is no text in language 'fr', only en, de"
    )
    name = folder.parquet("b.parquet", [{"en": "one", "de": 1}])
    assert error_of(ValueError, name) == f"{name}, row 1: the text in 'de' is not a string: 1"
    name = folder.lines("a.jsonl", ['{"en": "a", "de": "b"}', '{"en": 0, "de": "b"}'])
    assert error_of(ValueError, name).startswith(f"{name}, line 2: ")


@pytest.mark.parametrize("names", [["nothing.en", "nothing.de"], ["nothing.jsonl"], ["nothing.parquet"], ["no/body"]])
def test_what_is_missing_is_named(names):
    assert error_of(FileNotFoundError, *names).startswith(f"{names[0]}: ")


def test_other_mistakes_are_those_of_load_parallel_corpus(folder):
    assert "two languages" in error_of(ValueError, "phrasebook", languages=("en", "en"))
    assert "not 3" in error_of(ValueError, "a", "b", "c")
    assert "'dev'" in error_of(ValueError, "phrasebook", split="dev")
    assert "JSON lines or Parquet" in error_of(ValueError, folder.lines("a.txt", ["one"]))
