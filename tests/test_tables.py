"""Tables of every kind: the rows that they were written from, or one line that says what is wrong."""

from pathlib import Path

import pyarrow as pa
import pytest
from corpus_folder import Folder
from datasets import Dataset, DatasetDict
from pyarrow import parquet

from vaswani_transformer.data.corpora import load_parallel_corpus


PAIRS = [("one", "eins"), ('she said "no", twice', "sie sagte „nein“; zweimal"), ("two\u2028x ", " zwei"), ("", "drei")]
ROWS = [{"en": english, "de": german} for english, german in PAIRS]
QUOTED = [*PAIRS, ("a\nb", 'c"\n\nd')]  # only CSV can have them
TSV = ["one\teins", '"two" she said\tzwei', "three\tdrei"]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def load(*names: str | Path, **kwargs) -> list[tuple[str, str]]:
    rows = load_parallel_corpus(names, "en", "de", **kwargs)["translation"][:]
    return [(row["en"], row["de"]) for row in rows]


def error_of(*names: str | Path, error_class: type[Exception] = ValueError, **kwargs) -> str:
    with pytest.raises(error_class) as error:
        load(*names, **kwargs)
    assert error.type is error_class
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_csv_has_quoted_fields_of_any_text(folder, suffix):
    header = ["id", " en ", "de"]
    name = folder.csv(f"a.csv{suffix}", [header, *(["7", *pair] for pair in QUOTED)])
    assert load(name) == QUOTED


def test_csv_without_a_header_has_numbered_columns(folder):
    name = folder.csv("a.csv", [[german, "7", english] for english, german in QUOTED])
    assert load(name, columns=["3", "1"]) == QUOTED


def test_blank_lines_of_csv_and_tsv_are_no_rows_of_several_columns(folder):
    assert load(folder.raw("a.csv", b"en,de\n\none,eins\n\n")) == [("one", "eins")]
    assert load(folder.raw("a.tsv", b"\xef\xbb\xbfen\tde\r\n\r\none\teins\r\n\t\r\n")) == [("one", "eins"), ("", "")]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_blank_line_of_one_column_is_an_empty_text(folder, name):
    """Tables follow files of text here, so that line n of the translations belongs to row n."""
    assert load(folder.raw(name, b"\nen\none\n\ntwo\n"), columns=["en", "en"]) == [(t, t) for t in ("one", "", "two")]
    assert load(folder.raw(name, b"one\n\ntwo\n"), columns=["1", "1"]) == [(t, t) for t in ("one", "", "two")]


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.bz2"])
def test_quotes_of_tsv_are_text(folder, name):
    expected = [("one", "eins"), ('"two" she said', "zwei"), ("three", "drei")]
    assert load(folder.lines(name, TSV), columns=["1", "2"]) == expected
    assert load(folder.lines(name, ["en\tde", *TSV])) == expected
    assert load(folder.lines(name, ["English\tGerman", *TSV]), columns=["English", "German"]) == expected


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("nested", [True, False])
def test_columns_are_named(folder, kind, nested):
    pairs = [{"en_XX": pair["en"], "de_DE": pair["de"]} for pair in ROWS]
    rows = [{"id": 7, "translation": pair} for pair in pairs] if nested else [{"en": "x", **pair} for pair in pairs]
    assert load(getattr(folder, kind)(f"a.{kind}", rows), columns=["en_XX", "de_DE"]) == PAIRS


def test_tables_of_different_kinds_are_one_corpus(folder):
    rows, header = folder.json("a.jsonl", ROWS[:1]), folder.csv("c.csv", [["en", "de"]])
    assert load(rows, folder.parquet("b.parquet", ROWS[1:3]), header, folder.tmx("d.tmx", ROWS[3:])) == PAIRS


def test_a_pattern_is_its_files_in_sorted_order(folder):
    for number in (2, 0, 1, 3):
        folder.parquet(f"part-{number}.parquet", [ROWS[number]])
    folder.json("last[1].jsonl", ROWS[:1])
    pattern = folder.path / "part-*.parquet"
    assert load_parallel_corpus(pattern, "en", "de")["translation"][:] == ROWS
    assert load(folder.path / "**" / "part-[01]*", folder.path / "last[1].jsonl") == [*PAIRS[:2], PAIRS[0]]


def test_a_directory_of_save_to_disk_is_a_table(folder):
    DatasetDict(train=Dataset.from_list(ROWS[:1]), test=Dataset.from_list(ROWS)).save_to_disk(folder.path / "saved")
    Dataset.from_list(ROWS).save_to_disk(folder.path / "one", num_shards=3)
    assert load(folder.path / "saved", split="test") == PAIRS
    assert load(folder.path / "one", folder.path / "saved") == [*PAIRS, PAIRS[0]]


# Errors: one line each, naming the file and the line.


@pytest.mark.parametrize(
    ("content", "columns", "row", "complaint"),
    [
        (b"en,de\none,eins\ntwo\n", None, 3, "the number of fields is 1, but 2 in the first row"),
        (b'en,de\none,eins\n"two,zwei\nthree,drei\n', None, 3, "is a quote in it never closed"),
        (
            b"en,fr\none,un\n",
            None,
            2,
            "no column is called 'de' in {'en': 'one', 'fr': 'un'}; name two with the option columns, as 1 2 if",
        ),
        (b"one,eins\n", ["1", "3"], 1, "no column is called '3' in {'1': 'one', '2': 'eins'}"),
        (b"en,de,de\none,eins,un\n", None, 1, "two columns are called 'de'; rename one"),
    ],
)
def test_malformed_csv_is_refused_with_its_row(folder, content, columns, row, complaint):
    name = folder.raw("a.csv", content)
    message = error_of(name, columns=columns)
    assert message.startswith(f"{name}, row {row}: ")
    assert complaint in message


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.tsv", "\t")])
@pytest.mark.parametrize("lines", [[], ["en{mark}de"], ["en{mark}de", "{mark} "]])
def test_tables_without_rows_are_refused(folder, name, mark, lines):
    name = folder.lines(name, [line.format(mark=mark) for line in lines])
    assert error_of(name).startswith(f"{name}: the corpus is empty")


def test_a_saved_directory_that_is_damaged_or_lacks_the_split_is_refused(folder):
    directory = folder.path / "saved"
    DatasetDict(test=Dataset.from_list(ROWS)).save_to_disk(directory)
    assert error_of(directory) == f"{directory}: has no split 'train', only test; name a folder in it"
    arrow = next(directory.rglob("*.arrow"))
    for damage in (lambda: arrow.write_bytes(arrow.read_bytes()[:40]), arrow.unlink):
        damage()
        assert error_of(directory, split="test").startswith(f"{directory}: not whole (")


def test_texts_of_parquet_that_are_large_strings_or_coded_are_strings(folder):
    columns = {
        "en": pa.array([english for english, _ in PAIRS], pa.large_string()),
        "de": pa.array([german for _, german in PAIRS]).dictionary_encode(),
    }
    parquet.write_table(pa.table(columns), folder.path / "a.parquet")
    assert load(folder.path / "a.parquet") == PAIRS
