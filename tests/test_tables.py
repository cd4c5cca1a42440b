"""Tables of every kind: the rows that they were written from, or one line that says what is wrong."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from corpus_folder import COMPRESS, Folder
from datasets import Dataset, DatasetDict
from pyarrow import parquet

from vaswani_transformer.data.corpora import identify_corpus, load_parallel_corpus


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


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_csv_has_quoted_fields_of_any_text(folder, delimiter, suffix):
    header = ["id", " en ", "de"]
    name = folder.csv(f"a.csv{suffix}", [header, *(["7", *pair] for pair in QUOTED)], delimiter)
    assert load(name) == QUOTED


def test_csv_without_a_header_has_numbered_columns(folder):
    name = folder.csv("a.csv", [[german, "7", english] for english, german in QUOTED], delimiter=";")
    assert load(name, columns=["3", "1"]) == QUOTED


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_commas_of_sentences_do_not_divide_csv_without_a_header(folder, delimiter):
    pairs = [("Hello, world", "Hallo, Welt"), ("Yes", "Ja, gern"), ("No", "Nein")]
    assert load(folder.csv("a.csv", pairs, delimiter), columns=["1", "2"]) == pairs


def test_csv_that_two_characters_divide_needs_a_header(folder):
    name = folder.raw("a.csv", b"Hello;Hallo, Welt\nYes;Ja, gern\n")
    assert "',' and ';' both divide its lines" in error_of(name, columns=["1", "2"])


def test_the_case_of_a_suffix_does_not_count(folder):
    assert (
        load(folder.csv("a.CSV", [["en", "de"], *QUOTED]), folder.lines("b.Tsv", ["en\tde", *TSV]))[: len(QUOTED)]
        == QUOTED
    )


@pytest.mark.parametrize("pair", [("English", "Englisch"), ("Source", "Quelle"), ("no", "nein")])
def test_a_first_row_of_words_is_no_header(folder, pair):
    assert load(folder.csv("a.csv", [["1", *pair]]), columns=["2", "3"]) == [pair]


def test_blank_lines_of_csv_and_tsv_are_no_rows(folder):
    assert load(folder.raw("a.csv", b"en,de\n\none,eins\n\n")) == [("one", "eins")]
    assert load(folder.raw("a.tsv", b"\xef\xbb\xbfen\tde\r\n\r\none\teins\r\n\t\r\n")) == [("one", "eins"), ("", "")]


@pytest.mark.parametrize("name", ["a.tsv", "a", "a.txt.bz2"])
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


def test_columns_beside_a_translation_of_other_texts(folder):
    name = folder.json("a.json", [{"translation": {"en": "x", "de": "y"}, "raw_en": "one", "raw_de": "eins"}])
    assert load(name, columns=["raw_en", "raw_de"]) == [("one", "eins")]


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


def test_two_tables_of_a_pattern_are_recognised_by_their_first_lines(folder):
    for number in range(2):
        folder.lines(f"{number}.txt", TSV[number : number + 1])
    expected = [("one", "eins"), ('"two" she said', "zwei")]
    assert load(folder.path / "*.txt", columns=["1", "2"]) == expected


def test_paths_are_names(folder):
    english, german = (Path(folder.lines(side, ["x"])) for side in ("a.en", "a.de"))
    assert load(english, german) == [("x", "x")]
    assert load_parallel_corpus(Path(folder.json("a.json", ROWS)), "en", "de")["translation"][:] == ROWS


def test_a_directory_of_save_to_disk_is_a_table(folder):
    DatasetDict(train=Dataset.from_list(ROWS[:1]), test=Dataset.from_list(ROWS)).save_to_disk(folder.path / "saved")
    Dataset.from_list(ROWS).save_to_disk(folder.path / "one", num_shards=3)
    assert load(folder.path / "saved", split="test") == PAIRS
    assert load(folder.path / "one", folder.path / "saved") == [*PAIRS, PAIRS[0]]


def test_a_saved_directory_without_rows_is_refused(folder):
    Dataset.from_list(ROWS).select([]).save_to_disk(folder.path / "saved")
    message = error_of(folder.path / "saved").removeprefix(f"{folder.path / 'saved'}: ")
    # By datasets from 4.8, and before.
    assert message.startswith(("not a whole dataset of save_to_disk", "the corpus is empty"))


@pytest.mark.parametrize("name", ["a.txt", "a"])
def test_the_content_of_a_file_tells_what_it_is(folder, name):
    parquet_file = folder.parquet("b", ROWS)
    os.rename(parquet_file, folder.path / name)
    assert load(folder.path / name) == PAIRS
    for compress in COMPRESS.values():
        jsonl = "".join(json.dumps(row) + "\n" for row in ROWS)
        assert load(folder.raw(name, compress(jsonl.encode()))) == PAIRS
    os.rename(folder.tmx("b", ROWS), folder.path / name)
    assert load(folder.path / name) == PAIRS


def test_compressed_text_needs_no_suffix(folder):
    names = [folder.raw(side, COMPRESS[".xz"](f"{side}\n".encode())) for side in ("en.txt", "de.txt.gz")]
    assert load(*names) == [("en.txt", "de.txt.gz")]


def test_one_line_of_text_with_tabs_beside_another_file_is_a_sentence(folder):
    assert load(folder.lines("a.en", ["a\tb"]), folder.lines("a.de", ['{"x": 1}'])) == [("a\tb", '{"x": 1}')]


def test_other_columns_are_another_corpus(folder):
    name = folder.json("a.json", [{"en": "one", "de": "eins", "x": "ONE", "y": "EINS"}])
    assert load(name) == [("one", "eins")]
    assert load(name, columns=["x", "y"]) == [("ONE", "EINS")]


# Errors: one line each, naming the file and the line.


@pytest.mark.parametrize(
    ("content", "columns", "line", "complaint"),
    [
        (b"en,de\none,eins\ntwo\n", None, 3, "the number of fields is 1, but 2 in the first line"),
        (b'en,de\none,eins\n"two,zwei\nthree,drei\n', None, 3, "is a quote in it never closed"),
        (
            b"en,fr\none,un\n",
            None,
            1,
            "there is no column 'de', only en, fr; name two of them with the option columns, or number them, as in 1 2",
        ),
        (b"one,eins\n", ["1", "3"], 1, "there is no column '3', only 1, 2"),
        (b"id,en,de,en\n1,one,eins,two\n", None, 1, "there are 2 columns 'en'; rename all but one"),
        (b"id,en,de\n1,one,eins\n", ["2", "3"], 1, "'en' and 'de' are no sentences, but names of columns; give them"),
        (b"German;English\neins;one\n", ["2", "1"], 1, "'English' and 'German' are no sentences"),
        (b"en,de\none,f\xfcnf\n", None, 2, "not UTF-8"),
    ],
)
def test_malformed_csv_is_refused_with_its_line(folder, content, columns, line, complaint):
    name = folder.raw("a.csv", content)
    message = error_of(name, columns=columns)
    assert message.startswith(f"{name}, line {line}: ")
    assert complaint in message


def test_malformed_tsv_is_refused_with_its_line(folder):
    name = folder.lines("a.tsv", ["one\teins", "", "two"])
    message = error_of(name, columns=["1", "2"])
    assert message.startswith(f"{name}, line 3: the number of fields is 1, but 2 in the first line")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("lines", [[], ["en\tde"], ["en\tde", "\t "]])
def test_tables_without_rows_are_refused(folder, name, lines):
    name = folder.lines(name, lines)
    assert error_of(name).startswith(f"{name}: the corpus is empty")


def test_parquet_in_an_archive_is_refused(folder):
    content = Path(folder.parquet("whole", ROWS)).read_bytes()
    name = folder.raw("a.parquet.gz", COMPRESS[".gz"](content))
    assert error_of(name) == f"{name}: a Parquet file that was compressed once more; decompress it"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"PK\x03\x04 and so on", "a zip archive or an Excel workbook"),
        (b"\x28\xb5\x2f\xfd and so on", "compressed by zstd"),
        ("one\teins\n".encode("utf-16"), "UTF-16; convert it to UTF-8"),
        (b"x" * 257 + b"ustar" + b"x" * 100, "a tar archive"),
    ],
)
@pytest.mark.parametrize("compress", [bytes, COMPRESS[".gz"]])
def test_what_is_no_text_is_called_by_its_name(folder, content, complaint, compress):
    bad, text = folder.raw("a.de", compress(content)), folder.lines("a.en", ["x"])
    for names in ([bad], [text, bad]):
        assert error_of(*names).startswith(f"{bad}: {complaint}")


def test_a_table_beside_text_is_refused(folder):
    table, text = folder.parquet("a.de", ROWS), folder.lines("a.en", ["x"])
    assert error_of(text, table).startswith(f"{table} is a table, but {text} is text")


def test_text_files_by_a_pattern_are_refused(folder):
    for side in ("de", "en"):
        folder.lines(f"a.{side}", ["x"])
    pattern = str(folder.path / "a.*")
    assert error_of(pattern).startswith(f"{pattern}: a corpus is tables")
    assert "two aligned files, the source first" in error_of(pattern)


def test_a_pattern_without_files_is_named(folder):
    pattern = folder.path / "*.parquet"
    assert error_of(pattern, error_class=FileNotFoundError) == f"{pattern}: there is no such file"


@pytest.mark.parametrize("columns", [["en"], ["en", "en"]])
def test_columns_are_two(folder, columns):
    assert error_of(folder.json("a.json", ROWS), columns=columns).startswith("columns: name two")


def test_a_saved_directory_that_is_damaged_or_lacks_the_split_is_refused(folder):
    directory = folder.path / "saved"
    DatasetDict(test=Dataset.from_list(ROWS)).save_to_disk(directory)
    assert error_of(directory) == f"{directory}: has no split 'train', only test; name a folder in it"
    arrow = next(directory.rglob("*.arrow"))
    for damage in (lambda: arrow.write_bytes(arrow.read_bytes()[:40]), arrow.unlink):
        damage()
        assert error_of(directory, split="test").startswith(f"{directory}: not a whole dataset of save_to_disk")


def test_texts_of_parquet_that_are_large_strings_or_coded_are_strings(folder):
    columns = {
        "en": pa.array([english for english, _ in PAIRS], pa.large_string()),
        "de": pa.array([german for _, german in PAIRS]).dictionary_encode(),
    }
    parquet.write_table(pa.table(columns), folder.path / "a.parquet")
    assert load(folder.path / "a.parquet") == PAIRS


def test_a_column_that_parquet_has_twice_is_refused(folder):
    name = folder.path / "a.parquet"
    parquet.write_table(pa.Table.from_arrays([pa.array(["x"])] * 3, ["en", "de", "en"]), name)
    assert error_of(name) == f"{name}: there are 2 columns 'en'; rename all but one"


def test_a_page_of_parquet_that_contradicts_its_checksum_is_refused(folder):
    rows = pa.Table.from_pylist([{"en": f"sentence {number}", "de": "x"} for number in range(100)])
    name = folder.path / "a.parquet"
    parquet.write_table(rows, name, compression="none", write_page_checksum=True)
    assert len(load(name)) == 100
    name.write_bytes(name.read_bytes().replace(b"sentence 50", b"sentence 51"))
    assert error_of(name).startswith(f"{name}: not a whole Parquet file")


@pytest.mark.parametrize("kind", ["long texts", "many rows", "many nulls"])
def test_a_parquet_bomb_is_refused_in_little_memory(folder, kind):
    columns = {
        "long texts": [pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["long" * 100_000])] * 2,
        "many rows": [pa.array(["x"] * 2_000_000)] * 2,
        "many nulls": [pa.nulls(2_000_000, pa.string())] * 2,
    }[kind]
    name = folder.path / "a.parquet"
    rows = pa.Table.from_arrays(columns, ["en", "de"])
    parquet.write_table(rows, name, compression="zstd", store_schema=False, row_group_size=len(rows))
    assert name.stat().st_size < 100_000
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        assert error_of(name).startswith(f"{name}: its content is more than 200 times as large as the file")
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 1 << 27


def saved(folder: Folder, name: str, word: str) -> tuple[Path, Path]:
    """A saved directory of 50 rows, and its file of rows."""
    Dataset.from_list([{"en": f"{word} {number}", "de": "x"} for number in range(50)]).save_to_disk(folder.path / name)
    return folder.path / name, next((folder.path / name).glob("*.arrow"))


def test_a_saved_directory_with_rows_elsewhere_is_refused(folder):
    (directory, _), (_, other) = saved(folder, "saved", "one"), saved(folder, "other", "two")
    place = f"../other/{other.name}"
    state = json.loads((directory / "state.json").read_text())
    (directory / "state.json").write_text(json.dumps({**state, "_data_files": [{"filename": place}]}))
    message = error_of(directory)
    assert message.startswith(f"{directory}: its state.json names ")
    assert message.endswith(f"{other.name}, which is outside of it; save it again")
    with pytest.raises(ValueError, match=re.escape(message)):
        identify_corpus([directory])


def test_a_saved_directory_is_identified_by_the_files_that_are_read(folder):
    directory, rows = saved(folder, "saved", "one")
    (directory / "cache-1.arrow").write_bytes(b"of datasets.map")
    assert [each["file"] for each in identify_corpus([directory])] == [str(rows)]


def test_a_saved_directory_of_links_is_identified_by_what_they_lead_to(folder):
    """As `snapshot_download` lays one out."""
    (directory, rows), (_, other) = saved(folder, "saved", "one"), saved(folder, "other", "two")
    before = identify_corpus([directory])
    rows.unlink()
    rows.symlink_to(other)
    assert load(directory)[0] == ("two 0", "x")
    assert identify_corpus([directory])[0]["sha256"] != before[0]["sha256"]


def test_a_flipped_bit_of_an_offset_in_a_saved_directory_is_refused(folder):
    """Arrow would follow it out of the memory."""
    directory, rows = saved(folder, "saved", "one")
    content = bytearray(rows.read_bytes())
    offsets = np.cumsum([0, *(len(f"one {number}") for number in range(50))]).astype("<i4").tobytes()
    place = content.index(offsets) + 4 * 25
    content[place + 3] ^= 0x40
    rows.write_bytes(content)
    assert error_of(directory).startswith(f"{directory}: not a whole dataset of save_to_disk")
