"""Translation memories are streamed: the segments that were written, without mark-up, in bounded memory."""

import tracemalloc
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import XMLPullParser

import pytest
from corpus_folder import COMPRESS, Folder

from vaswani_transformer.data import translation_memory
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.data.translation_memory import read_memory


LANGUAGES = ("en", "de")
UNITS = [
    {"en-US": "one & <two>", "de_AT": "eins"},
    {"de": " zwei\n", "fr": "deux", "EN": "two"},
    {"en": "only English", "fr": "un"},
    {"en-GB": "first", "en": "exact", "de-DE": "drei", "de-CH": "later"},
    {"en": "", "de": ""},
]
PAIRS = [("one & <two>", "eins"), ("two", " zwei\n"), ("exact", "drei"), ("", "")]


TENFOLD = [f"<!ENTITY {name} '{10 * f'&{inner};'}'>" for inner, name in pairwise("kjihgfedcba")]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def error_of(name: str, languages: tuple[str, str] = LANGUAGES, error_class: type[Exception] = ValueError) -> str:
    with pytest.raises(error_class) as error:
        list(read_memory(Path(name), languages))
    assert error.type is error_class
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(name)
    return str(error.value).removeprefix(name)


def body(text: str, prolog: str = "") -> bytes:
    return f'<?xml version="1.0"?>\n{prolog}<tmx version="1.4"><body>\n{text}</body></tmx>'.encode()


def unit(source: str, target: str = "x") -> str:
    return f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv><tuv xml:lang="de"><seg>{target}</seg></tuv></tu>\n'


@pytest.mark.parametrize("name", ["a.tmx", "a.xml", "a.tmx.gz", "a.tmx.bz2", "a.txt.xz"])
def test_units_with_both_languages_are_the_pairs(folder, name):
    corpus = load_parallel_corpus(folder.tmx(name, UNITS), *LANGUAGES, cache_dir=folder.path / "cache")
    assert [(pair["en"], pair["de"]) for pair in corpus["translation"]] == PAIRS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_the_encoding_is_that_of_the_file(folder, encoding):
    name = folder.tmx("a.tmx", [{"en": "five", "de": "fünf"}], encoding)
    corpus = load_parallel_corpus(name, *LANGUAGES)
    assert corpus["translation"][:] == [{"en": "five", "de": "fünf"}]


def test_an_exact_language_is_chosen_by_its_region(folder):
    name = folder.tmx("a.tmx", [{"en-GB": "colour", "en-US": "color", "de": "Farbe"}])
    assert list(read_memory(Path(name), ("en-us", "de"))) == [("color", "Farbe")]
    corpus = load_parallel_corpus(name, *LANGUAGES, columns=["en-US", "de"])
    assert corpus["translation"][:] == [{"en": "color", "de": "Farbe"}]


def test_elements_may_have_a_namespace(folder):
    content = body(unit("A <ph>x</ph>word.")).replace(b"<tmx", b'<tmx xmlns="http://www.lisa.org/tmx14"')
    assert list(read_memory(Path(folder.raw("a.tmx", content)), LANGUAGES)) == [("A word.", "x")]


def test_mark_up_inside_of_a_segment_is_no_text(folder):
    inside = 'A <bpt i="1">&lt;b&gt;<sub>note</sub></bpt>bold<ept i="1">&lt;/b&gt;</ept> <hi>word</hi><ph/>.'
    name = folder.raw("a.tmx", body(unit(inside)))
    assert list(read_memory(Path(name), LANGUAGES)) == [("A bold word.", "x")]


@pytest.mark.parametrize(
    ("of_a_unit", "instead"),
    [
        ("<seg>", '<note>aside</note><prop type="x">y</prop><seg>'),
        ("xml:lang", "lang"),  # of older versions of TMX
        ("</tu>", '<tuv xml:lang="de"><seg>later</seg></tuv></tu>'),
    ],
)
def test_what_else_a_unit_may_have_is_no_text(folder, of_a_unit, instead):
    content = body(unit("one", "eins").replace(of_a_unit, instead))
    assert list(read_memory(Path(folder.raw("a.tmx", content)), LANGUAGES)) == [("one", "eins")]


def test_units_of_many_chunks_are_read_to_the_end(folder):
    pairs = [(f"sentence {number} <&> ü", f"Satz {number}\u2028") for number in range(2000)]
    name = folder.tmx("a.tmx", [{"en-US": english, "de-DE": german} for english, german in pairs])
    assert list(read_memory(Path(name), LANGUAGES)) == pairs


def test_memory_does_not_grow_with_the_file(folder):
    def most_memory(units: int) -> int:
        name = folder.raw("a.tmx", body(unit("word " * 40) * units))
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_memory(Path(name), LANGUAGES)) == units
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert most_memory(20_000) < 2 * most_memory(2_000) < 4_000_000


# Errors: one line each, naming the file and, where there is one, the line.


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", ", line 1: not well-formed XML (no element found)"),
        (body(unit("a & b")), ", line 3: not well-formed XML (not well-formed (invalid token))"),
        (body(unit("caf&eacute;")), ", line 3: not well-formed XML (undefined entity"),
        (b'<?xml version="1.0" encoding="shift_jis"?><tmx/>', ": multi-byte encodings are not supported; convert"),
        (b"<?xml version='1.0'?><xliff><file/></xliff>", ": XML, but no TMX; its root is <xliff>, not <tmx>"),
        (
            body(unit("one").replace('"de"', '"fr"')),
            ": no translation unit has both 'en' and 'de'; the languages in it",
        ),
    ],
)
def test_malformed_memories_are_refused(folder, content, complaint):
    message = error_of(folder.raw("a.tmx", content))
    assert message.startswith(complaint)


@pytest.mark.parametrize(
    ("prolog", "complaint"),
    [
        ('<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/hostname">]>\n', "undefined entity &a;"),
        ('<!DOCTYPE tmx [<!ENTITY % b SYSTEM "http://localhost/a.dtd"> %b;]>\n', "undefined entity &a;"),
        (f"<!DOCTYPE tmx [<!ENTITY k '0123456789'>{''.join(TENFOLD)}]>\n", "limit on input amplification"),
    ],
)
def test_entities_fetch_no_file_and_fill_no_memory(folder, prolog, complaint):
    assert f", line 4: not well-formed XML ({complaint}" in error_of(folder.raw("a.tmx", body(unit("&a;"), prolog)))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_truncated_archive_is_refused(folder, suffix):
    whole = COMPRESS[suffix](body("".join(unit(f"{number**9}") for number in range(5000))))
    message = error_of(folder.raw(f"a.tmx{suffix}", whole[: len(whole) // 2]))
    assert message.startswith(f": not a whole {suffix} file")


def test_a_unit_without_end_is_refused(folder):
    name = folder.raw("a.tmx", body(f"<tu><tuv><seg>{'word ' * 4_000_000}"))
    assert error_of(name) == ": no translation unit ends within 16,777,216 bytes; is it TMX?"


def test_a_long_comment_is_passed_over(folder):
    name = folder.raw("a.tmx", body(f"<!--{'a' * 500_000}-->" * 9 + unit("one", "eins")))
    assert list(read_memory(Path(name), LANGUAGES)) == [("one", "eins")]


def test_units_that_a_parser_holds_back_until_the_end_are_read(folder, monkeypatch):
    class HoldsBack(XMLPullParser):
        feed = lambda parser, data: held.append(data)  # noqa: E731

        def close(self) -> None:
            super().feed(b"".join(held))
            super().close()

    held: list[bytes] = []
    monkeypatch.setattr(translation_memory, "XMLPullParser", HoldsBack)
    name = folder.raw("a.tmx", body(unit("one", "eins") + unit("two", "zwei")))
    assert list(read_memory(Path(name), LANGUAGES)) == [("one", "eins"), ("two", "zwei")]


def test_elements_inside_of_elements_without_end_are_refused(folder):
    assert error_of(folder.raw("a.tmx", body("<a>" * 1000))) == ": more than 100 elements, each inside of another"
