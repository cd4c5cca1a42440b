"""Translation memories yield the segments that were written, without mark-up, in bounded memory."""

import re
import tracemalloc
from pathlib import Path

import pytest
from corpus_folder import Folder

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


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def body(text: str, prolog: str = "") -> bytes:
    return f'<?xml version="1.0"?>\n{prolog}<tmx version="1.4"><body>\n{text}</body></tmx>'.encode()


def unit(source: str, target: str = "x") -> str:
    return f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv><tuv xml:lang="de"><seg>{target}</seg></tuv></tu>\n'


@pytest.mark.parametrize("name", ["a.tmx", "a.tmx.gz"])
def test_units_with_both_languages_are_the_pairs(folder, name):
    corpus = load_parallel_corpus(folder.tmx(name, UNITS), *LANGUAGES, cache_dir=folder.path / "cache")
    assert [(pair["en"], pair["de"]) for pair in corpus["translation"]] == PAIRS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_the_encoding_is_that_of_the_file(folder, encoding):
    name = folder.tmx("a.tmx", [{"en": "five", "de": "fünf"}], encoding)
    corpus = load_parallel_corpus(name, *LANGUAGES)
    assert corpus["translation"][:] == [{"en": "five", "de": "fünf"}]


def test_elements_may_have_a_namespace(folder):
    content = body(unit("A <ph>x</ph>word.")).replace(b"<tmx", b'<tmx xmlns="http://www.lisa.org/tmx14"')
    assert list(read_memory(Path(folder.raw("a.tmx", content)), LANGUAGES)) == [("A word.", "x")]


def test_mark_up_inside_of_a_segment_is_no_text(folder):
    inside = 'A <bpt i="1">&lt;b&gt;<sub>note</sub></bpt>bold<ept i="1">&lt;/b&gt;</ept> <hi>word</hi><ph/>.'
    name = folder.raw("a.tmx", body(unit(inside)))
    assert list(read_memory(Path(name), LANGUAGES)) == [("A bold word.", "x")]


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("Press Enter.<ph>&lt;br/&gt;</ph>Then wait<ph/><ut>x</ut>here.", "Press Enter. Then wait here."),
        ("(<ph/>a <ph/>b<ph/>, c<ph/> d<ph/>)", "(a b, c d)"),
        ("un<bpt>x</bpt>usu<it>x</it>al<ept>x</ept>", "unusual"),
    ],
)
def test_a_code_that_stands_alone_separates_words(folder, inside, text):
    name = folder.raw("a.tmx", body(unit(inside)))
    assert list(read_memory(Path(name), LANGUAGES)) == [(text, "x")]


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

    assert most_memory(8_000) < 2 * most_memory(1_000) < 4_000_000


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not XML that can be read: no element found: line 1"),
        (body(unit("a & b")), "not XML that can be read: not well-formed (invalid token): line 3"),
        (b'<?xml version="1.0" encoding="shift_jis"?><tmx/>', "multi-byte encodings are not supported"),
        (body(unit("&a;"), '<!DOCTYPE tmx [<!ENTITY a "b">]>\n'), "EntitiesForbidden"),
        (body(unit("one").replace('"de"', '"fr"')), "no translation unit has both 'en' and 'de'; the languages in it"),
    ],
)
def test_a_malformed_memory_is_an_error_that_names_the_file(folder, content, complaint):
    name = folder.raw("a.tmx", content)
    with pytest.raises(ValueError, match=f"^{re.escape(name)}: ") as error:
        list(read_memory(Path(name), LANGUAGES))
    assert complaint in str(error.value)
