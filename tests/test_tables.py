"""Tables of every kind: the rows that they were written from, or one line that says what is wrong."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from corpus_folder import error_of, load
from datasets import Dataset, DatasetDict
from pyarrow import parquet
from transformers.utils.logging import warning_once


PAIRS = [("one", "eins"), ('she said "no", twice', "sie sagte „nein“; zweimal"), ("two\u2028x ", " zwei"), ("", "drei")]
ROWS = [{"en": english, "de": german} for english, german in PAIRS]
QUOTED = [*PAIRS, ("a\nb", 'c"\n\nd')]  # only CSV can have them


@pytest.mark.parametrize("name", ["a.jsonl", "a.b.JSON.Xz", "a.parquet"])
@pytest.mark.parametrize("columns", [("en", "de"), ("en_XX", "de_DE")])
@pytest.mark.parametrize("is_nested", [True, False])
def test_tables_have_texts_by_language_or_column(folder, name, columns, is_nested):
    pairs = [dict(zip(columns, pair, strict=True)) for pair in PAIRS]
    rows = [{"id": 7, **({"translation": {"fr": "un", **pair}} if is_nested else pair)} for pair in pairs]
    write = folder.parquet if name == "a.parquet" else folder.json
    assert load(write(name, rows), columns=columns) == PAIRS


def test_json_lines_may_be_blank_and_in_any_order_of_keys(folder):
    name = folder.raw("a.jsonl", b'\n{"de": "eins", "en": "one"}\r\n \n{"en": "two", "de": "zwei"}')
    assert load(name) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_null_is_an_empty_sentence(folder, kind):
    pairs = [{"en": "a man", "de": "ein Mann"}, {"en": None, "de": "b"}, {"en": "c", "de": None}]
    assert load(getattr(folder, kind)(f"a.{kind}", pairs)) == [("a man", "ein Mann"), ("", "b"), ("c", "")]


def test_csv_has_quoted_fields_of_any_text_and_columns_by_name_or_number(folder):
    header = ["id", " en ", "de"]
    assert load(folder.csv("a.csv.gz", [header, *(["7", *pair] for pair in QUOTED)])) == QUOTED
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


@pytest.mark.parametrize(
    ("header", "columns"),
    [([], ["1", "2"]), (["en\tde"], None), (["English\tGerman"], ["English", "German"])],
)
def test_quotes_of_tsv_are_text(folder, header, columns):
    rows = ["one\teins", '"two" she said\tzwei', "three\tdrei"]
    expected = [tuple(row.split("\t")) for row in rows]
    assert load(folder.lines("a.tsv.bz2", [*header, *rows]), columns=columns) == expected


@pytest.fixture
def warnings(caplog) -> Callable[[], list[str]]:
    warning_once.cache_clear()
    return lambda: caplog.messages


@pytest.mark.parametrize(
    ("suffix", "advice"), [("tsv", "; to remove them, convert"), ("tsv.gz", "decompress and convert")]
)
def test_quotes_of_csv_in_a_tsv_are_counted_in_a_warning(folder, warnings, suffix, advice):
    rows = ['"""No"", he said"\tNein', "", '"Yes," he said\t"ja"', 'a\t"b ""c"""', '""\t"a" or ""b""']
    name = folder.lines(f"a.{suffix}", rows)
    assert len(load(name, columns=["1", "2"])) == 4
    (warning,) = warnings()
    assert warning.startswith(f"{name}: 2 rows, the first of them 1, have fields in quotes with doubled quotes inside")
    assert advice in warning
    assert "csv.reader(sys.stdin, 'excel-tab')" in warning


@pytest.mark.parametrize(
    ("row", "columns", "names"),
    [
        ("id\ten\tde_DE", ["2", "3"], "en de_DE"),
        ("English\tid\tfrançais", ["3", "1"], "français English"),
        ("source\tTarget\tx", ["1", "2"], "source Target"),
        ("en\tde\tx", ["en", "de"], None),
        ("en\tEin Hund\tx", ["1", "2"], None),
    ],
)
def test_a_header_that_is_read_as_sentences_has_a_warning(folder, warnings, row, columns, names):
    name = folder.lines("a.tsv", [row, "a\tb\tc"])
    load(name, columns=columns)
    complaint = f"{name}: the first row looks like a header, but is read as sentences, since the option columns has "
    assert warnings() == [f"{complaint}numbers; give it names instead: {names}"] * (names is not None)


def test_tables_of_different_kinds_are_one_corpus(folder):
    rows, header = folder.json("a.jsonl", ROWS[:1]), folder.csv("c.csv", [["en", "de"]])
    assert load(rows, folder.parquet("b.parquet", ROWS[1:3]), header, folder.tmx("d.tmx", ROWS[3:])) == PAIRS


def test_a_pattern_is_its_files_in_sorted_order(folder):
    for number in (2, 0, 1, 3):
        folder.parquet(f"part-{number}.parquet", [ROWS[number]])
    folder.json("last[1].jsonl", ROWS[:1])
    pattern = folder.path / "part-*.parquet"
    assert load(pattern) == PAIRS
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
            "no column is called 'de' in {'en': 'one', 'fr': 'un'}; name both by --columns, such as 1 2 for",
        ),
        (b"one,eins\n", ["1", "3"], 1, "no column is called '3' in {'1': 'one', '2': 'eins'}"),
    ],
)
def test_malformed_csv_is_refused_with_its_row(folder, content, columns, row, complaint):
    name = folder.raw("a.csv", content)
    message = error_of(name, columns=columns)
    assert message.startswith(f"{name}, row {row}: ")
    assert complaint in message


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"en": "a", "de": "b"', "not JSON"),
        ("[1, 2]", "no column is called 'en' in [1, 2]"),
        ('{"en": "a"}', "no column is called 'de' in {'en': 'a'}"),
        ('{"en": "a", "de": ["b"]}', "the text in 'de' is not a string: ['b']"),
    ],
)
def test_a_bad_line_of_json_is_refused_with_its_number(folder, line, complaint):
    name = folder.lines("a.jsonl", ['{"en": "a", "de": "b"}', "", line, "also bad"])
    message = error_of(name)
    assert message.startswith(f"{name}, row 3: ")
    assert complaint in message


@pytest.mark.parametrize("is_nested", [True, False])
def test_a_missing_column_and_a_value_that_is_no_text_are_refused(folder, is_nested):
    pair = {"en": "one", "de": 0}
    name = folder.parquet("a.parquet", [{"translation": pair} if is_nested else pair])
    assert error_of(name) == f"{name}, row 1: the text in 'de' is not a string: 0"
    shown = f"{name}, row 1: no column is called 'fr' in {{'de': 0, 'en': 'one'}}; name both"
    assert error_of(name, languages=("fr", "en")).startswith(shown)


@pytest.mark.parametrize("lines", [[], ["en\tde"], ["en\tde", "\t "]])
def test_tables_without_rows_are_refused(folder, lines):
    name = folder.lines("a.tsv", lines)
    assert error_of(name).startswith(f"{name}: the corpus is empty")


def test_a_damaged_parquet_file_is_refused(folder):
    rows = [{"en": os.urandom(40).hex(), "de": "b"} for _ in range(1000)]
    whole = Path(folder.parquet("whole.parquet", rows)).read_bytes()
    garbled = whole[:100] + b"\xff" * 9000 + whole[9100:]
    for content in (b"", b"nonsense" * 100, whole[:-100], garbled):
        name = folder.raw("a.parquet", content)
        assert error_of(name).startswith(f"{name}: ")


def test_a_saved_directory_that_is_damaged_or_lacks_the_split_is_refused(folder):
    directory = folder.path / "saved"
    DatasetDict(test=Dataset.from_list(ROWS)).save_to_disk(directory)
    assert error_of(directory) == f"{directory}: has no split 'train', only test; name a folder in it"
    arrow = next(directory.rglob("*.arrow"))
    for damage in (lambda: arrow.write_bytes(arrow.read_bytes()[:40]), arrow.unlink):
        damage()
        assert error_of(directory, split="test").startswith(f"{directory}: ")


def test_texts_of_parquet_that_are_large_strings_or_coded_are_strings(folder):
    columns = {
        "en": pa.array([english for english, _ in PAIRS], pa.large_string()),
        "de": pa.array([german for _, german in PAIRS]).dictionary_encode(),
    }
    parquet.write_table(pa.table(columns), folder.path / "a.parquet")
    assert load(folder.path / "a.parquet") == PAIRS
