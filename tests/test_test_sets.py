"""Test sets from files and by name, and the variants of newstest2014 by their lines."""

import gzip
from pathlib import Path

import pytest

from vaswani_transformer.evaluation.test_sets import newstest2014_variant, read_test_set, sacrebleu_test_set


@pytest.fixture
def newstest(shared_data):
    def lines(pair: str, name: str) -> list[str]:
        with gzip.open(shared_data / "newstest" / pair / name, "rt", encoding="utf-8", newline="\n") as file:
            return [line.removesuffix("\n") for line in file]

    return lines


def test_newstest2014_is_known_by_its_lines(newstest, shared_data):
    index = (shared_data / "newstest" / "en-de" / "newstest2014.filtered2737.idx").read_text().split()
    for target in ("de", "fr"):
        english, other = (newstest(f"en-{target}", f"newstest2014.{language}.gz") for language in ("en", target))
        assert newstest2014_variant("x", english, other) == "full"
        assert newstest2014_variant("x", other, english) == "full"
        assert newstest2014_variant("newstest2014.en", english[:100]) == "altered"
        development = newstest(f"en-{target}", "newstest2013.en.gz")
        assert newstest2014_variant("x", development, development) is None
        # Sets of as many lines there are several.
        assert newstest2014_variant("newstest2012", [*development, "a", "b", "c"]) is None
        if target == "de":
            filtered = [english[int(line)] for line in index]
            assert newstest2014_variant("x", filtered, filtered) == "filtered"
            quoted = [line.replace('"', "''").replace(" ", "  ") for line in filtered]
            assert newstest2014_variant("x", quoted) == "filtered"


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("newstest2014", ("en", "de"), "no 'newstest2014'; .* newstest2014 wmt14/full or, filtered, wmt14"),
        ("wmt14", ("en", "xx"), "wmt14 has no en-xx, only .*en-de"),
    ],
)
def test_a_test_set_that_does_not_exist(name, languages, message):
    with pytest.raises(ValueError, match=message):
        sacrebleu_test_set(name, languages)


@pytest.fixture
def files(tmp_path):
    """Writes lines into a file of this name, and returns its path."""

    def write(name: str, *lines: str) -> Path:
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return tmp_path / name

    return write


def test_files_are_a_test_set(files):
    references = [files("a.de", "Eins.", "Zwei."), files("b.de", "1.", "2.")]
    found = read_test_set(files("x.en", "One.", "Two."), references, ("en", "de"))
    assert str(found) == "x.en, a.de, b.de: 2 lines"
    assert (found.sources, found.references) == (["One.", "Two."], [["Eins.", "1."], ["Zwei.", "2."]])
    assert found.newstest2014 is None
    assert found.read_hypotheses(files("h.de", "Ein", "Zwei")) == ["Ein", "Zwei"]
    alone = read_test_set(None, references[:1], ("en", "de"), "newstest2014, again")
    assert str(alone).startswith("newstest2014: 2 lines (neither the full 3,003 nor")
    assert alone.sources is None


def test_files_that_are_no_test_set(files, tmp_path):
    two, three, none = files("two", "1", "2"), files("three", "1", "2", "3"), files("none")
    with pytest.raises(ValueError, match=r"reference: .*none has no lines"):
        read_test_set(None, [none], ("en", "de"))
    for source, references in ((three, [two]), (None, [two, three])):
        with pytest.raises(ValueError, match=r"three has 3 lines but .*two has 2; line n of one must translate line n"):
            read_test_set(source, references, ("en", "de"))
    with pytest.raises(FileNotFoundError, match="source: there is no file"):
        read_test_set(tmp_path / "missing", [two], ("en", "de"))
