import os
from pathlib import Path

import pytest
from corpus_folder import COMPRESS, ROWS, Folder
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani_transformer.data import corpora
from vaswani_transformer.data.corpora import is_on_hub, load_parallel_corpus, resolve_languages, spread
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.data.text_files import read_lines


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def load(*names: str, languages: tuple[str, str] = ("en", "de"), **kwargs) -> list[dict]:
    return load_parallel_corpus(names, *languages, **kwargs).to_list()


@pytest.mark.parametrize("suffixes", [("", ""), (".gz", ".gz"), (".xz", ".xz"), ("", ".gz"), (".xz", ""), (".bz2", "")])
def test_text_files_pair_line_by_line_at_line_feeds_only(folder, suffixes):
    assert load(*folder.pair(suffixes)) == ROWS


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("one\ntwo", ["one", "two"]),
        ("\ufeffone\n\ufefftwo\n", ["one", "\ufefftwo"]),
        ("one\r\ntwo\r\r\n", ["one", "two\r"]),
        ("a\u2028b\u0085c\x0bd\x1ce\rf\0g\r\n", ["a\u2028b\u0085c\x0bd\x1ce\rf\0g"]),
    ],
)
def test_lines_end_at_line_feeds_only(folder, content, lines):
    assert list(read_lines(Path(folder.raw("a", content.encode())))) == lines


def test_the_first_file_is_the_source(folder):
    english, german = folder.pair()
    assert load(german, english, languages=("de", "en")) == ROWS


@pytest.mark.parametrize("name", ["a.jsonl", "a.b.json.xz", "a.parquet"])
@pytest.mark.parametrize("nested", [True, False])
def test_tables_have_texts_by_language(folder, name, nested):
    rows = [{"translation": {"fr": "un", **row["translation"]}} if nested else row["translation"] for row in ROWS]
    write = folder.parquet if name == "a.parquet" else folder.json
    assert load(write(name, [{"id": 7, **row} for row in rows])) == ROWS


def test_json_lines_may_be_blank_and_in_any_order_of_keys(folder):
    name = folder.raw("a.jsonl", b'\n{"de": "eins", "en": "one"}\r\n \n{"en": "two", "de": "zwei"}')
    assert [list(row["translation"].values()) for row in load(name)] == [["eins", "one"], ["zwei", "two"]]


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("nested", [True, False])
def test_a_null_is_an_empty_sentence(folder, kind, nested):
    pairs = [{"en": "a man", "de": "ein Mann"}, {"en": None, "de": "b"}, {"en": "c", "de": None}]
    rows = [*({"translation": pair} for pair in pairs), {"translation": None}] if nested else pairs
    name = getattr(folder, kind)(f"a.{kind}", rows)
    expected = [("a man", "ein Mann"), ("", "b"), ("c", ""), ("", "")]
    assert [(row["translation"]["en"], row["translation"]["de"]) for row in load(name)] == expected[: len(rows)]


def test_a_changed_file_is_read_again_though_its_size_is_the_same(folder):
    for time, word in enumerate(("old", "new")):
        name = folder.json("a.json", [{"en": word, "de": "x"}])
        os.utime(name, ns=(time, time))
        assert load(name) == [{"translation": {"en": word, "de": "x"}}]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_phrasebook_is_a_corpus_in_both_directions(split):
    rows = [{"translation": {"en": english, "de": german}} for english, german in phrasebook(split)]
    assert load("phrasebook", split=split) == load("phrasebook", split=split, languages=("de", "en")) == rows


def test_the_phrasebook_is_in_english_and_german_alone():
    with pytest.raises(ValueError, match=r"^phrasebook: is in English and German"):
        load("phrasebook", languages=("source", "target"))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("nested", [True, False])
def test_other_names_are_datasets_of_the_hub(monkeypatch, nested, streaming):
    """The Hub itself cannot be asked here, so this stands in for it."""

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        table = Dataset.from_list(ROWS if nested else [row["translation"] for row in ROWS])
        return table.to_iterable_dataset() if streaming else table

    asked: list[tuple] = []
    monkeypatch.setattr(corpora, "load_dataset", load_dataset)
    assert load("wmt/wmt14", split="validation", config_name="de-en", streaming=streaming) == ROWS
    assert asked == [(("wmt/wmt14", "de-en"), {"split": "validation", "streaming": streaming})]


def test_what_is_no_file_is_of_the_hub(folder):
    files = [*folder.pair(), folder.json("a.jsonl", ROWS)]
    gone = ("gone.tsv", "gone.tmx.gz", "x/part-*")
    assert is_on_hub("wmt/wmt14")
    assert is_on_hub(["wmt14"])
    for source in ("phrasebook", files[2], Path(files[2]), files[:2], folder.path, *gone):
        assert not is_on_hub(source)


def test_rows_lie_in_the_given_cache_and_are_read_once(folder, monkeypatch):
    names, cache = folder.pair(), folder.path / "cache"
    first = load_parallel_corpus(names, "en", "de", cache_dir=cache)
    assert {Path(file["filename"]).is_relative_to(cache) for file in first.cache_files} == {True}
    monkeypatch.setattr(corpora, "read_lines", lambda _: pytest.fail("a file was read"))
    assert load(*names, cache_dir=cache) == ROWS


@settings(deadline=None, database=None)
@given(st.integers(1, 200), st.integers(1, 250))
def test_a_sample_is_spread_evenly(length, count):
    chosen = spread(length, count).tolist()
    assert len(chosen) == min(length, count)
    assert chosen == sorted(set(chosen))
    gaps = [after - before for before, after in zip(chosen, [*chosen[1:], length], strict=True)]
    assert max(gaps) - min(gaps) <= 1
    assert chosen[0] == 0


# Errors: one line each, naming the file, the line or the argument.


def error_of(error_class: type[Exception], *names: str, **kwargs) -> str:
    with pytest.raises(error_class) as error:
        load(*names, **kwargs)
    assert isinstance(error_class, tuple) or error.type is error_class
    message = str(error.value)
    assert "\n" not in message
    return message


def test_misaligned_files_are_refused_with_their_lengths(folder):
    english, german = folder.lines("a", ["one", "two"]), folder.lines("b", ["eins", "zwei", "drei"])
    for names in ((english, german), (german, english)):
        message = error_of(ValueError, *names)
        assert f"{english} has 2" in message
        assert f"{german} has 3" in message


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_text_that_is_not_utf8_is_refused_with_its_line(folder, suffix):
    compress = COMPRESS.get(suffix, bytes)
    good, bad = folder.lines("a.txt", ["one", "two", "three"]), folder.raw("b", compress(b"one\ntwo\nthr\xe9e\n"))
    for names in ((good, bad), (bad, good)):
        assert error_of(ValueError, *names).startswith(f"{bad}, line 3: not UTF-8")


@pytest.mark.parametrize("damage", ["cut", "not an archive", "garbled"])
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_damaged_archive_is_refused(folder, damage, suffix):
    whole = COMPRESS[suffix](b'{"en": "a", "de": "b"}\n' * 1000)
    content = {
        "cut": whole[: len(whole) // 2],
        "not an archive": b"one\ntwo\n",
        "garbled": whole[:20] + b"\xff" * (len(whole) - 40) + whole[-20:],
    }[damage]
    bad = folder.raw(f"a.jsonl{suffix}", content)
    assert error_of(ValueError, bad).startswith(f"{bad}: not a whole {suffix} file")


def test_a_damaged_parquet_file_is_refused(folder):
    rows = [{"en": os.urandom(40).hex(), "de": "b"} for _ in range(1000)]
    whole = Path(folder.parquet("whole.parquet", rows)).read_bytes()
    garbled = whole[:100] + b"\xff" * 9000 + whole[9100:]
    for content in (b"", b"nonsense" * 100, whole[:-100], garbled):
        name = folder.raw("a.parquet", content)
        assert error_of(ValueError, name).startswith(f"{name}: not whole (")


def test_a_missing_file_is_named(folder):
    english, german = folder.pair((".gz", ""))
    os.remove(german)
    for names in ([english, german], [str(folder.path / "a.jsonl.gz")]):
        missing = next(name for name in names if not os.path.exists(name))
        assert error_of(FileNotFoundError, *names) == f"{missing}: there is no such file"
    assert "'nothing.en' on the Hub" in error_of(ConnectionError, "nothing.en")


def test_files_that_are_no_table_and_no_pair_of_texts_are_refused(folder):
    names = [folder.lines(f"{number}.en", ["one"]) for number in range(3)]
    for few_or_many in ([], names[:1], names, [names[0], folder.json("a.jsonl", ROWS)]):
        shown = " ".join(few_or_many) or "nothing"
        assert error_of(ValueError, *few_or_many).startswith(f"{shown}: a corpus is two aligned text files, ")


@pytest.mark.parametrize("lines", [[], ["", " "]], ids=["no lines", "blank lines"])
def test_a_corpus_without_sentences_is_refused_with_the_names_of_its_files(folder, lines):
    names = [folder.lines(f"a.{side}.gz", lines) for side in ("en", "de")]
    message = error_of(ValueError, *names)
    assert message.startswith(f"{' and '.join(names)}: the corpus is empty")
    assert message.endswith("give files with at least one sentence pair")


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("nested", [True, False])
def test_a_missing_language_is_refused_with_those_that_there_are(folder, kind, nested):
    pair = {"en": "one", "de": "eins"}
    name = getattr(folder, kind)(f"a.{kind}", [{"translation": pair} if nested else pair])
    for languages in (("en", "fr"), ("fr", "de")):
        message = error_of(ValueError, name, languages=languages)
        assert message.startswith(name)
        message = message.replace("de, en", "en, de")  # before 4.8 datasets sorts columns
        assert "no column is called 'fr', of en, de; name two with the option columns" in message


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"en": "a", "de": "b"', "not JSON"),
        ("[1, 2]", "no object"),
        ('{"en": "a"}', "no column is called 'de', of en"),
        ('{"en": "a", "de": ["b"]}', "the text in 'de' is not a string"),
        ('{"en": "\\ud800", "de": "b"}', "surrogates not allowed"),
    ],
)
def test_a_bad_line_of_json_is_refused_with_its_number(folder, line, complaint):
    name = folder.lines("a.jsonl", ['{"en": "a", "de": "b"}', "", line, "also bad"])
    message = error_of(ValueError, name)
    assert message.startswith(f"{name}, line 3: ")
    assert complaint in message


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("value", [0, ["b"]])
def test_parquet_texts_that_are_not_strings_are_refused(folder, nested, value):
    pair = {"en": "one", "de": value}
    name = folder.parquet("a.parquet", [{"translation": pair} if nested else pair])
    assert error_of(ValueError, name).startswith(f"{name}: the text in 'de' is not a string: ")


@pytest.mark.parametrize("names", [("a.de", "a.en"), ("x.de.gz", "b"), ("b", "en-de.en"), ("de.txt", "en.txt")])
def test_files_named_after_another_language_are_refused(folder, names):
    names = [folder.lines(name, ["one"]) for name in names]
    source, target = f"source_language: is en, but {names[0]} is in de", f"target_language: is de, but {names[1]} is in"
    assert error_of(ValueError, *names).startswith((source, target))
    assert load(*names, languages=("de", "en")) == [{"translation": {"de": "one", "en": "one"}}]
    assert "_language: is " in error_of(ValueError, *names, languages=("fr", "nl"))


@pytest.mark.parametrize(
    ("corpora", "named", "columns", "languages"),
    [
        ([["train.en", "train.fr"]], (None, None), None, ("en", "fr")),
        ([["x.pt_BR.gz", "x.zh-TW.txt.xz"]], (None, None), None, ("pt_BR", "zh-TW")),
        ([["x.src", "x.tgt"], ["v.fr", "v.en"]], (None, None), None, ("fr", "en")),
        ([["x.src", "x.tgt"]], ("nl", "eo"), None, ("nl", "eo")),
        ([["x.src", "x.fr"]], ("en_GB", None), None, ("en_GB", "fr")),
        ([["x.fr", "x.ga"]], (None, "ga"), None, ("fr", "ga")),
        (["phrasebook"], (None, None), None, ("en", "de")),
        ([["phrasebook"]], ("de", None), None, ("de", "en")),
        (["some/dataset"], (None, None), ["en", "fr"], ("en", "fr")),
        ([["a.en", "a.de"]], ("source", "target"), None, ("source", "target")),
    ],
)
def test_languages_are_those_that_corpora_say_unless_named(corpora, named, columns, languages):
    assert resolve_languages(corpora, *named, columns) == languages


@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "parquet", "saved", "splits"])
def test_columns_of_a_table_say_the_languages(folder, kind):
    rows = Dataset.from_list([{"id": 1, "fr": "un", "note": "", "en": "one"}] * 2).remove_columns("id")
    name = str(folder.path / f"a.{kind}")
    if kind in ("json", "parquet"):
        getattr(rows, f"to_{kind}")(name)
    elif kind in ("csv", "tsv"):
        rows.to_csv(name, sep="," if kind == "csv" else "\t")
    else:
        (rows if kind == "saved" else DatasetDict(train=rows)).save_to_disk(name)
    assert resolve_languages([[name]]) == ("fr", "en")
    assert resolve_languages([[name]], None, "fr") == resolve_languages([[name]], "en") == ("en", "fr")
    assert load_parallel_corpus(name)["translation"][:] == [{"en": "one", "fr": "un"}] * 2
    with pytest.raises(ValueError, match=r"^source_language: is nl, but .* is in fr; "):
        resolve_languages([[name]], "nl")


@pytest.mark.parametrize(
    ("files", "named", "missing"),
    [
        (["a.src", "a.tgt"], (None, None), "source_language, target_language"),
        (["a.en", "a.tgt"], (None, None), "target_language"),
        (["a.src", "a.de"], (None, None), "source_language"),
        (["a.src", "a.tgt"], ("en", None), "target_language"),
        (["three.jsonl"], (None, None), "source_language, target_language"),
        (["damaged.jsonl"], (None, None), "source_language, target_language"),
        (["some/dataset"], (None, "en"), "source_language"),
    ],
)
def test_languages_that_nothing_says_are_asked_for(folder, files, named, missing):
    folder.lines("three.jsonl", ['{"en": "a", "de": "b", "fr": "c"}'])
    folder.lines("damaged.jsonl", ["{"])
    names = [str(folder.path / name) if name.endswith("jsonl") else name for name in files]
    with pytest.raises(ValueError, match=f"^{missing}: neither suffixes .* give --{missing.replace(', ', ' and --')}$"):
        resolve_languages([names], *named)
