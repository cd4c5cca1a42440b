"""Translation memories yield the segments that were written, without mark-up, in bounded memory."""

import gzip
import tracemalloc
from pathlib import Path

import pytest
from corpus_folder import error_of, load

from vaswani_transformer.data.translation_memory import read_memory


UNITS = [
    {"en-US": "one & <two>", "de_AT": "eins"},
    {"de": " zwei\n", "fr": "deux", "EN": "two"},
    {"eng": "three", "deu_Latn": "drei"},
    {"en": "only English", "fr": "un"},
    {"en-GB": "first", "en": "exact", "de-DE": "drei", "de-CH": "later"},
    {"en": "", "de": ""},
]
PAIRS = [("one & <two>", "eins"), ("two", " zwei "), ("three", "drei"), ("exact", "drei"), ("", "")]


def body(text: str, prolog: str = "") -> bytes:
    return f'<?xml version="1.0"?>\n{prolog}<tmx version="1.4"><body>\n{text}</body></tmx>'.encode()


def unit(source: str, target: str = "x") -> str:
    return f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv><tuv xml:lang="de"><seg>{target}</seg></tuv></tu>\n'


def test_units_with_both_languages_are_the_pairs(folder):
    assert load(folder.tmx("a.tmx.gz", UNITS)) == PAIRS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_the_encoding_is_that_of_the_file(folder, encoding):
    assert load(folder.tmx("a.tmx", [{"en": "five", "de": "fünf"}], encoding)) == [("five", "fünf")]


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (
            'A <bpt i="1">&lt;b&gt;<sub>note</sub></bpt>bold<ept i="1">x</ept> <hi>word</hi><ph/>.',
            "A bold word.",
        ),
        ("Press Enter.<ph>&lt;br/&gt;</ph>Then wait<ph/><ut>x</ut>here.", "Press Enter. Then wait here."),
        ("(<ph/>a <ph/>b<ph/>, c<ph/> d<ph/>)", "(a b, c d)"),
        ("un<bpt>x</bpt>usu<it>x</it>al<ept>x</ept>", "unusual"),
        ("one\n      two<ph/>\n\t three<hi>\r\n </hi>four", "one two three four"),
        ("请按<ph/>回车<ph/>Enter<ph/>键。<ph/>Microsoft<ph/>Word", "请按回车Enter键。Microsoft Word"),
        ("これは<ph/>本です.<ph/>ตัว<ph/>หนังสือ", "これは本です.ตัวหนังสือ"),
        ("한국어<ph/>문장.<ph/>다음", "한국어 문장. 다음"),
    ],
)
def test_mark_up_is_no_text_and_a_code_that_stands_alone_separates_words(folder, inside, text):
    assert load(folder.raw("a.tmx", body(unit(inside)))) == [(text, "x")]


@pytest.mark.parametrize(
    ("of_a_unit", "instead"),
    [
        ("<seg>", '<note>aside</note><prop type="x">y</prop><seg>'),
        ("xml:lang", "lang"),  # of older versions of TMX
        ("</tu>", '<tuv xml:lang="de"><seg>later</seg></tuv></tu>'),
        ("<tmx", '<tmx xmlns="http://www.lisa.org/tmx14"'),
    ],
)
def test_what_else_a_unit_may_have_is_no_text(folder, of_a_unit, instead):
    content = body(unit("o<ph>x</ph>ne", "eins")).replace(of_a_unit.encode(), instead.encode())
    assert load(folder.raw("a.tmx", content)) == [("o ne", "eins")]


def test_memory_does_not_grow_with_the_file(folder):
    def most_memory(units: int) -> int:
        name = folder.raw("a.tmx", body(unit("word " * 40) * units))
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_memory(Path(name), ("en", "de"))) == units
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert most_memory(8_000) < 2 * most_memory(1_000) < 4_000_000


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not XML (no element found: line 1"),
        (body(unit("a & b")), "not well-formed (invalid token): line 3"),
        (b'<?xml version="1.0" encoding="shift_jis"?><tmx/>', "multi-byte encodings are not supported"),
        (body(unit("&a;"), '<!DOCTYPE tmx [<!ENTITY a "b">]>\n'), "EntitiesForbidden"),
        (body(unit("one").replace('"de"', '"fr"')), "no translation unit has both 'en' and 'de'; the languages in it"),
    ],
)
def test_a_malformed_memory_is_an_error_that_names_the_file(folder, content, complaint):
    name = folder.raw("a.tmx", content)
    message = error_of(name)
    assert message.startswith(f"{name}: ")
    assert complaint in message


def test_a_cut_archive_is_named_as_one(folder):
    whole = gzip.compress(body("".join(unit(f"word {number}") for number in range(1000))))
    name = folder.raw("a.tmx.gz", whole[: len(whole) // 2])
    assert error_of(name).startswith(f"{name}: not a whole .gz file")
