"""visualize_attention.py: the picture that Python draws, and one clear error for each mistake."""

import pytest
from helpers import call_recipe, limit_of_files
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani_transformer.visualization.figures import attention_view, entropy_view, learning_rate_view, positions_view


SOURCE, TARGET = "The old man reads a book. " * 12, "Der alte Mann."  # longer than the name of a file may be


@pytest.fixture
def loaded(lively_model):
    return AutoModelForSeq2SeqLM.from_pretrained(lively_model), AutoTokenizer.from_pretrained(lively_model)


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


def test_a_picture_that_cannot_be_written_leaves_the_earlier_one(tmp_path):
    picture = tmp_path / "a.svg"
    picture.write_text("earlier", encoding="utf-8")
    with pytest.raises(SystemExit, match="File too large"), limit_of_files(100):
        svg("--picture", "positions", "--d_model", 16, folder=tmp_path)
    assert picture.read_text(encoding="utf-8") == "earlier"
    assert list(tmp_path.iterdir()) == [picture]


def test_the_other_pictures(lively_model, loaded, tmp_path):
    options = ("--model", lively_model, "--source", "The old man.", "--picture", "entropy")
    assert svg(*options, folder=tmp_path) == entropy_view(*loaded, "The old man.")._repr_svg_()
    options = ("--picture", "positions", "--d_model", 16)
    assert svg(*options, folder=tmp_path) == positions_view(16)._repr_svg_()
    options = ("--picture", "learning_rate", "--d_model", 16, "--warmup_steps", 50)
    assert svg(*options, folder=tmp_path) == learning_rate_view(16, 50)._repr_svg_()


SENTENCE = ["--model", "{model}", "--source", "A man."]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "x", "--output", "new.svg"], "source: give it"),
        (["--model", "x", "--source", "A", "--output", "new.pdf"], "output: new.pdf does not end in .svg or .png"),
        (["--model", "x", "--source", "A", "--output", "old.svg"], "output: old.svg exists already"),
        (["--picture", "positions", "--output", "new.svg", "--layer", "1"], "layer: has no effect here; leave it out"),
        ([*SENTENCE, "--output", "new.svg", "--heads", "1", "3"], "heads: must be 1 to 2, is 3"),
    ],
)
def test_mistakes_are_one_line_before_the_model_is_loaded(options, message, lively_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.svg").touch()
    with pytest.raises(SystemExit) as raised:
        call_recipe("visualize_attention.py", *(option.format(model=lively_model) for option in options))
    assert message in raised.value.code
    assert len(raised.value.code.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.svg"]
