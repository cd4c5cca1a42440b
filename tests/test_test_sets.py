"""Test sets from files and by name."""

from pathlib import Path

import pytest
from helpers import write_lines

from vaswani_transformer.evaluation.test_sets import read_test_set, sacrebleu_test_set


def test_a_test_set_that_does_not_exist():
    with pytest.raises(ValueError, match=r"wmt14 for en-xx .*; `sacrebleu --list` names all, .* wmt14/full"):
        sacrebleu_test_set("wmt14", ("en", "xx"))


@pytest.fixture
def files(tmp_path):
    """Writes lines into a file of this name, and returns its path."""

    def write(name: str, *lines: str) -> Path:
        return write_lines(tmp_path / name, lines)

    return write


def test_files_are_a_test_set(files):
    references = [files("a.de", "Eins.", "Zwei."), files("b.de", "1.", "2.")]
    found = read_test_set(files("x.en", "One.", "Two."), references, ("en", "de"))
    assert str(found) == "x.en, a.de, b.de: 2 lines"
    assert (found.sources, found.references) == (["One.", "Two."], [["Eins.", "1."], ["Zwei.", "2."]])
    assert found.read_hypotheses(files("h.de", "Ein", "Zwei")) == ["Ein", "Zwei"]
    assert read_test_set(None, references[:1], ("en", "de")).sources is None
