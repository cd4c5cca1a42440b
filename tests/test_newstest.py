"""Test sets of WMT by name, and the variants of newstest2014 by their lines."""

import gzip

import pytest

from vaswani_transformer.evaluation import newstest2014_variant, sacrebleu_files


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
        ("wmt14/ful", ("en", "de"), "no 'wmt14/ful', but wmt14/full"),
        ("newstest2014", ("en", "de"), "newstest2014 wmt14/full or, filtered, wmt14"),
        ("wmt14", ("en", "xx"), "wmt14 has no en-xx, only .*en-de"),
    ],
)
def test_a_test_set_that_does_not_exist(name, languages, message):
    with pytest.raises(ValueError, match=message):
        sacrebleu_files(name, *languages)
