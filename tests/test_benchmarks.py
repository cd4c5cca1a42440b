"""The benchmarks check what they are given before they work: minutes of it, and a result, were lost otherwise."""

import re
import sys
from pathlib import Path

import pytest
from helpers import REPOSITORY, recipe_module

from vaswani_transformer.data.phrasebook.corpus import phrasebook


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.en"
    path.write_text("".join(english + "\n" for english, _ in phrasebook("validation")[:20]), encoding="utf-8")
    (tmp_path / "short.de").write_text("Ein Satz.\n", encoding="utf-8")
    (tmp_path / "part.yaml").write_text("train: phrasebook\nsource_language: no\n", encoding="utf-8")
    (tmp_path / "twice.yaml").write_text("train: phrasebook\ntrain: other\n", encoding="utf-8")
    (tmp_path / "empty.en").write_text("\n \n", encoding="utf-8")
    return path


DECODE = ("decode", "--text", "{folder}/text.en", "--model", "{model}")
SCALING = ("scaling", "--output", "{folder}", "--source", "{folder}/text.en", "--target")
STOCK = ("stock_trainer", "--ours", "{model}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("decode", "--text", "{folder}/text.en"), "model: name the directory of a trained model"),
        ((*DECODE, "--references", "{folder}/short.de"), r"short\.de has 1 lines but .*text\.en has 20"),
        (
            ("decode", "--text", "{folder}/text.en", "--model", "{folder}"),
            r"model: .* has no config\.json|model: .* has no weights",
        ),
        ((*DECODE, "--device", "cuda"), "device: there is no CUDA device"),
        (("decode", "--text", "{folder}/empty.en", "--model", "{model}"), "text: there is nothing in .* to translate"),
        ((*STOCK, "--like", "{folder}/text.en"), r"like: .*text\.en: must hold lines of the form"),
        ((*STOCK, "--like", "{folder}/part.yaml"), "like: .* has no test, target_language, .*; name the configuration"),
        ((*STOCK, "--like", "{demo}", "--output", "{folder}/text.en"), "output: cannot write into .*text.en"),
        (("table1", "--output", "{folder}/text.en/below"), "output: cannot write into .*below"),
        ((*SCALING, "{folder}/short.de"), r"text\.en has 20 lines but .*short\.de has 1"),
        ((*SCALING, "{folder}/text.en"), r"vocab_size: the corpus supports only \d+ entries, not 8000"),
        (
            (*SCALING[:2], "{folder}/text.en/below", *SCALING[3:], "{folder}/text.en"),
            "output: cannot write into .*below",
        ),
    ],
)
def test_what_is_wrong_is_said_before_the_work(arguments, message, text, saved_model, tmp_path, monkeypatch):
    name, *options = arguments
    if name == "decode":
        pytest.importorskip("ctranslate2")
    places = {"folder": tmp_path, "model": saved_model, "demo": REPOSITORY / "recipes" / "configs" / "demo.yaml"}
    module = recipe_module(f"benchmarks/{name}.py")
    for work in ("compare", "measure", "untrained", "balance"):
        monkeypatch.setattr(module, work, lambda *_: pytest.fail("the work began"), raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *(option.format(**places) for option in options)])
    with pytest.raises(SystemExit, match=message) as caught:
        module.main()
    assert str(caught.value.code).startswith(f"{name}.py: ")
    assert len(str(caught.value.code).splitlines()) == 1


def test_a_language_is_what_the_configuration_shows(tmp_path):
    path = tmp_path / "like.yaml"
    text = "train: a\ntest: [b, c]\nsource_language: no\ntarget_language: en\nmax_steps: 5\nmax_ratio:\n"
    path.write_text(text, encoding="utf-8")
    found = recipe_module("benchmarks/stock_trainer.py").read_configuration(path)
    assert (found.train, found.test) == (["a"], ["b", "c"])
    assert (found.source_language, found.target_language, found.max_steps, found.max_ratio) == ("no", "en", 5, 5.0)


def test_the_output_of_decode_is_made_before_the_work(text, saved_model, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    module = recipe_module("benchmarks/decode.py")
    output = tmp_path / "new" / "folder"

    def work(*_):
        assert output.is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "compare", work)
    arguments = ["decode.py", "--text", str(text), "--model", str(saved_model), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(KeyboardInterrupt):
        module.main()


@pytest.mark.parametrize(
    ("name", "record"),
    [("decode", "DecodeRecord"), ("edge", "EdgeRecord"), ("elastic", "ElasticRecord"), ("table1", "Table1Record")],
)
def test_a_published_chapter_is_made_of_the_record_beside_it(name, record):
    module, folder = recipe_module(f"benchmarks/{name}.py"), REPOSITORY / "recipes" / "benchmarks"
    found = getattr(module, record).load(folder / f"{name}.json")
    assert module.as_markdown(found) == (folder / f"{name}.md").read_text(encoding="utf-8")
    assert re.fullmatch(r"[0-9a-f]{40}", found.run.commit)
