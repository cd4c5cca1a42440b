"""visualize_attention.py: the picture that Python draws, and one clear error for each mistake."""

import pytest
from helpers import call_recipe

from vaswani_transformer.visualization.figures import attention_view


SOURCE, TARGET = "The old man reads a book. " * 12, "Der alte Mann."  # longer than the name of a file may be


@pytest.fixture
def loaded(loaded_model, tokenizer):
    return loaded_model, tokenizer


def svg(*options: object, folder) -> str:
    call_recipe("visualize_attention.py", *options, "--output", folder / "a.svg", "--overwrite")
    return (folder / "a.svg").read_text(encoding="utf-8")


def test_attention_as_python_draws_it(lively_model, loaded, tmp_path):
    options = ("--model", lively_model, "--source", SOURCE, "--target", TARGET)
    assert svg(*options, folder=tmp_path) == attention_view(*loaded, SOURCE, TARGET)._repr_svg_()
    chosen = ("--kind", "cross", "--layer", 1, "--heads", 2, "--words", "Mann", ".", "--merge_words")
    expected = attention_view(
        *loaded, SOURCE, TARGET, kind="cross", layer=1, heads=[2], words=["Mann", "."], merge=True
    )
    assert svg(*options, *chosen, folder=tmp_path) == expected._repr_svg_()


def test_a_picture_that_exists_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.svg").touch()
    with pytest.raises(SystemExit, match=r"output: old\.svg exists already"):
        call_recipe("visualize_attention.py", "--model", "x", "--source", "A", "--output", "old.svg")
