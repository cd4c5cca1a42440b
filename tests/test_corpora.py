import os
from pathlib import Path

import pytest
from corpus_folder import COMPRESS, ROWS, Folder
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani_transformer.data import sources
from vaswani_transformer.data.corpora import evenly_spaced, load_parallel_corpus, resolve_languages
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.data.sources import HubDataset, Phrasebook, Tables, TextFiles, find_source
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
        ("\ufeff", [""]),
        ("one\r\ntwo\r\r\n", ["one", "two\r"]),
        ("a\u2028b\u0085c\x0bd\x1ce\rf\0g\r\n", ["a\u2028b\u0085c\x0bd\x1ce\rf\0g"]),
    ],
)
def test_lines_end_at_line_feeds_only(folder, content, lines):
    assert list(read_lines(Path(folder.raw("a", content.encode())))) == lines


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
    name = getattr(folder, kind)(f"a.{kind}", [{"translation": pair} for pair in pairs] if nested else pairs)
    expected = [("a man", "ein Mann"), ("", "b"), ("c", "")]
    assert [(row["translation"]["en"], row["translation"]["de"]) for row in load(name)] == expected


def test_a_changed_file_is_read_again_though_its_size_is_the_same(folder):
    for word in ("old", "new"):
        name = folder.json("a.json", [{"en": word, "de": "x"}])
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
    monkeypatch.setattr("vaswani_transformer.data.sources.load_dataset", load_dataset)
    assert load("wmt/wmt14", split="validation", config_name="de-en", streaming=streaming) == ROWS
    assert asked == [(("wmt/wmt14", "de-en"), {"split": "validation", "streaming": streaming})]


def test_what_is_no_file_is_of_the_hub(folder):
    texts, table = folder.pair(), folder.json("a.jsonl", ROWS)
    assert find_source("wmt/wmt14") == find_source(["wmt/wmt14"]) == HubDataset("wmt/wmt14")
    assert find_source("phrasebook") == Phrasebook("phrasebook")
    assert find_source(texts) == TextFiles(" and ".join(texts), *map(Path, texts))
    for name in (table, "gone.tsv", "gone.tmx.gz", "x/part-*.parquet"):
        assert find_source(name) == find_source(Path(name)) == Tables(name, (Path(name),))


def test_rows_lie_in_the_given_cache_and_are_read_once(folder, monkeypatch):
    names, cache = folder.pair(), folder.path / "cache"
    first = load_parallel_corpus(names, "en", "de", cache_dir=cache)
    assert {Path(file["filename"]).is_relative_to(cache) for file in first.cache_files} == {True}
    monkeypatch.setattr(sources, "read_lines", lambda _: pytest.fail("a file was read"))
    assert load(*names, cache_dir=cache) == ROWS


@settings(deadline=None, database=None)
@given(st.integers(1, 200), st.integers(1, 250))
def test_a_sample_is_spread_evenly(length, count):
    chosen = evenly_spaced(length, count).tolist()
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
    good = folder.lines("a.txt", ["one", "two", "three"])
    bad = folder.raw(f"b{suffix}", compress(b"one\ntwo\nthr\xe9e\n"))
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
        assert f"No such file or directory: '{missing}'" in error_of(FileNotFoundError, *names)
    assert "'nothing.en' on the Hub" in error_of(ConnectionError, "nothing.en")


def test_files_that_are_no_table_and_no_pair_of_texts_are_refused(folder):
    names = [folder.lines(f"{number}.en", ["one"]) for number in range(3)]
    for few_or_many in ([], names[:1], names, [names[0], folder.json("a.jsonl", ROWS)]):
        shown = " and ".join(few_or_many) or "nothing"
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
        assert message.startswith(f"{name}, row 1: no column is called 'fr' in {{'de': 'eins', 'en': 'one'}}; name two")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"en": "a", "de": "b"', "not JSON"),
        ("[1, 2]", "no column is called 'en' in [1, 2]"),
        ('{"en": "a"}', "no column is called 'de' in {'en': 'a'}"),
        ('{"en": "a", "de": ["b"]}', "the text in 'de' is no string: ['b']"),
    ],
)
def test_a_bad_line_of_json_is_refused_with_its_number(folder, line, complaint):
    name = folder.lines("a.jsonl", ['{"en": "a", "de": "b"}', "", line, "also bad"])
    message = error_of(ValueError, name)
    assert message.startswith(f"{name}, row 3: ")
    assert complaint in message


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("value", [0, ["b"]])
def test_parquet_texts_that_are_not_strings_are_refused(folder, nested, value):
    pair = {"en": "one", "de": value}
    name = folder.parquet("a.parquet", [{"translation": pair} if nested else pair])
    assert error_of(ValueError, name).startswith(f"{name}, row 1: the text in 'de' is no string: ")


@pytest.mark.parametrize("names", [("a.de", "a.en"), ("x.de.gz", "b"), ("b", "en-de.en"), ("de.txt", "en.txt")])
def test_files_named_after_another_language_are_refused(names):
    source, target = f"source_language: is en, but {names[0]} is in de", f"target_language: is de, but {names[1]} is in"
    with pytest.raises(ValueError, match=f"^({source}|{target})"):
        resolve_languages([names], "en", "de")
    assert resolve_languages([names], "de", "en") == ("de", "en")


@pytest.mark.parametrize(
    ("corpora", "named", "languages"),
    [
        ([["train.en", "train.fr"]], (None, None), ("en", "fr")),
        ([["x.pt_BR.gz", "x.zh-TW.txt.xz"]], (None, None), ("pt_BR", "zh-TW")),
        ([["x.src", "x.tgt"], ["v.fr", "v.en"]], (None, None), ("fr", "en")),
        ([["x.src", "x.fr"]], ("en_GB", None), ("en_GB", "fr")),
        ([["a.jsonl", "b.csv"], ["phrasebook"], ["some/dataset"]], ("nl", "eo"), ("nl", "eo")),
        ([["a.en", "a.de"]], ("source", "target"), ("source", "target")),
    ],
)
def test_languages_are_those_that_suffixes_say_unless_named(corpora, named, languages):
    assert resolve_languages(corpora, *named) == languages


@pytest.mark.parametrize(
    ("files", "named", "missing"),
    [
        (["a.src", "a.tgt"], (None, None), "source_language, target_language"),
        (["a.src", "a.de"], (None, None), "source_language"),
        (["a.src", "a.tgt"], ("en", None), "target_language"),
        (["some/dataset"], (None, "en"), "source_language"),
    ],
)
def test_languages_that_nothing_says_are_asked_for(files, named, missing):
    with pytest.raises(ValueError, match=f"^{missing}: no suffix .* give --{missing.replace(', ', ' and --')}$"):
        resolve_languages([files], *named)
