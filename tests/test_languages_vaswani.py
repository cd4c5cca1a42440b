import json
from pathlib import Path

import pytest
from helpers import call_recipe, write_lines
from models import translate_alone
from transformers import PreTrainedConfig, pipeline

from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.model import languages_vaswani
from vaswani_transformer.model.languages_vaswani import (
    Directions,
    base_language,
    is_same_language,
    language_name,
    writes_spaces,
)
from vaswani_transformer.model.translation_vaswani import in_order, translate_in_batches
from vaswani_transformer.options.data import DataArguments
from vaswani_transformer.options.training import ModelArguments
from vaswani_transformer.runs.fine_tuning import open_parent


TWO_WAY = PreTrainedConfig(language_tags={"en": 8, "de_AT": 9}, source_language="en", target_language="de_AT")
VARIETIES = PreTrainedConfig(language_tags={"en": 7, "pt": 8, "pt_BR": 9})
TAGS = {"de": 3, "en": 4}
CHINESE = PreTrainedConfig(language_tags={"en": 7, "zho": 8, "zh_Hant": 9})
THREE = PreTrainedConfig(language_tags={"en": 7, "de": 8, "fr": 9})


@pytest.mark.parametrize(
    ("config", "source", "target", "tag"),
    [
        (TWO_WAY, None, "de", "<2de_AT>"),
        (TWO_WAY, "en_GB", None, "<2de_AT>"),
        (TWO_WAY, "de", "en", "<2en>"),
        (TWO_WAY, None, None, None),
        (THREE, "en", None, None),  # German or French
        (VARIETIES, None, "pt", "<2pt>"),
        (VARIETIES, "pt", "pt_BR", "<2pt_BR>"),
        (VARIETIES, None, "pt_PT", "<2pt>"),
        (THREE, "en", "fr", "<2fr>"),
        (THREE, "eng", "deu_Latn", "<2de>"),
        (CHINESE, "en", "zho_Hant", "<2zh_Hant>"),
        (CHINESE, "eng", "cmn", "<2zho>"),
        (PreTrainedConfig(source_language="en", target_language="de"), "en", "de", None),
        (PreTrainedConfig(), "en", "fr", None),
    ],
)
def test_languages_choose_the_tag(config, source, target, tag):
    assert Directions(config).tag(source, target) == tag


@pytest.mark.parametrize(
    ("code", "base", "name", "has_spaces"),
    [
        ("deu_Latn", "de", "German", True),
        ("pes_Arab", "fa", "Persian", True),
        ("pt_BR", "pt", "Portuguese (Brazil)", True),
        ("jpn", "ja", "Japanese", False),
        ("cmn", "zh", "Chinese", False),
        ("zho_Hant", "zh", "Chinese (Traditional)", False),
        ("yue_Hant", "yue", "Cantonese (Traditional)", False),
        ("dzo", "dz", "Dzongkha", False),
        ("xx", "xx", "xx", True),
        ("und", "und", "und", True),
        ("Source", "source", "Source", True),
    ],
)
def test_codes_of_any_kind_name_a_language(code, base, name, has_spaces):
    assert (base_language(code), language_name(code), writes_spaces(code)) == (base, name, has_spaces)


def test_codes_of_a_language_and_of_its_varieties_are_alike(monkeypatch):
    for one, other in (("en", "EN-gb"), ("de", "de_AT"), ("zh", "zh_Hant")):
        for is_installed in (True, False):
            with monkeypatch.context() as patch:
                if not is_installed:  # as on the Hub
                    patch.setattr(languages_vaswani, "langcodes", None)
                assert is_same_language(one, other)
                assert not is_same_language(one, "ja")
    assert is_same_language("eng", "en_US")
    assert is_same_language("cmn", "zho_Hant")
    assert not is_same_language("zho_Hans", "zh_Hant")


def test_a_text_may_begin_with_its_tag():
    assert Directions(TWO_WAY).split(" <2en> Ein Hund. ") == ("<2en>", "Ein Hund. ")
    assert Directions(TWO_WAY).split("<2en>Ein Hund.") == ("<2en>", "Ein Hund.")
    assert Directions(TWO_WAY).split("\ufeff\u200b\u202a \u2066<2en> Ein Hund.") == ("<2en>", "Ein Hund.")
    assert Directions(TWO_WAY).split("Ein <2en> Hund.") == (None, "Ein <2en> Hund.")
    assert Directions(PreTrainedConfig()).split("<2en> x") == (None, "<2en> x")
    with pytest.raises(ValueError, match="begins with <2en>, but <2de_AT> is asked for"):
        Directions(TWO_WAY).tagged("<2en> Ein Hund.", "<2de_AT>")
    with pytest.raises(ValueError, match="begins with <2fr>, but the model's tags are <2en> and <2de_AT>; use one"):
        Directions(TWO_WAY).tagged(" <2fr> Ein Hund.", "<2en>")
    assert Directions(TWO_WAY).tagged("<2 mm> <2fr>", "<2en>") == "<2en> <2 mm> <2fr>"
    assert Directions(TWO_WAY).languages("<2en>") == ("de_AT", "en")
    assert Directions(TWO_WAY).languages() == ("en", "de_AT")
    assert Directions(THREE).languages("<2fr>") == (None, "fr")


def by_hand(directory: Path, text: str) -> str:
    saved = open_model(directory)
    return translate_alone(saved.load(), saved.tokenizer, text)


def test_the_pipeline_adds_the_tag_of_the_target_language(two_way):
    sources = ["Dogs!", "A man."]
    into = {code: [by_hand(two_way, f"<2{code}> {source}") for source in sources] for code in ("en", "de")}
    assert into["en"] != into["de"]
    english = [{"translation_text": text} for text in into["en"]]
    german = [{"translation_text": text} for text in into["de"]]

    named = pipeline("translation_en_to_de", model=str(two_way))
    assert named(sources) == german
    assert named(sources, tgt_lang="en") == english
    built = pipeline("translation", model=str(two_way), src_lang="de", tgt_lang="en")
    assert built(sources[0]) == english[:1]
    plain = pipeline("translation", model=str(two_way))
    assert plain([f"<2en> {source}" for source in sources]) == english
    assert plain({"text": sources[0], "tgt_lang": "de"}) == german[:1]
    assert list(plain((text for text in sources), src_lang="en")) == [german[:1], german[1:]]
    assert plain(["", sources[1]], tgt_lang="de") == [{"translation_text": ""}, german[1]]
    batches = translate_in_batches(plain.model, plain.tokenizer, sources, target_language="de")
    assert [ranked[0].text for ranked in in_order(batches)] == into["de"]


def test_only_the_best_translation_into_a_measured_language_has_a_confidence(two_way):
    """The batch begins with the longest source, whose direction is not measured."""
    translator = pipeline("translation", model=str(two_way), num_return_sequences=2, return_scores=True)
    translator.model.config.confidence_curve = {"de": [[-1e3, 1.0], [0.0, 90.0]]}
    english, german = translator(["<2en> Ein Mann und noch ein Mann.", "<2de> Dogs!"])
    assert [each["confidence"] is None for each in (*english, *german)] == [True, True, False, True]


def test_nothing_is_translated_into_a_language_that_was_not_chosen(two_way):
    unknown = "the model translates between de and en; name the target .* <2de> or <2en>"
    translator = pipeline("translation", model=str(two_way))
    for text in ("Dogs!", ["<2de> A man.", "Dogs!"]):
        with pytest.raises(ValueError, match=unknown):
            translator(text)
    for text in ("Dogs!", "The <2en> dogs!", "Dogs! <2de>"):
        with pytest.raises(ValueError, match=unknown):
            translator.model.generate(**translator.tokenizer(text, return_tensors="pt"))
    with pytest.raises(ValueError, match="not from en into fr"):
        pipeline("translation_en_to_fr", model=str(two_way))
    with pytest.raises(ValueError, match="not into fr"):
        translator("Dogs!", tgt_lang="fr")


def test_files_are_translated_into_the_language_named(two_way, tmp_path):
    lines = ["Dogs!", "", "A man.", "Dogs and dogs and dogs and dogs."]
    write_lines(tmp_path / "in.txt", lines)
    output = tmp_path / "out.jsonl"

    def translate(*options: str) -> list[dict[str, str]]:
        files = ["--input", tmp_path / "in.txt", "--output", output]
        call_recipe("translate.py", "--model", two_way, *files, *options)
        return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]

    expected = [by_hand(two_way, f"<2en> {line}") if line else "" for line in lines]
    assert translate("--target_language", "en") == [
        {"de": line, "en": text} for line, text in zip(lines, expected, strict=True)
    ]
    with pytest.raises(SystemExit, match="the model translates between de and en; name the target"):
        translate("--overwrite")
    (tmp_path / "in.txt").write_text("<2en> Dogs!\n<2fr> Dogs!\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"in\.txt, line 2: the text begins with <2fr>, but "):
        translate("--overwrite", "--target_language", "en")
    (tmp_path / "in.txt").write_text("<2en> Dogs!\n", encoding="utf-8")
    assert translate("--overwrite", "--target_language", "en") == [{"de": "Dogs!", "en": expected[0]}]


@pytest.mark.parametrize("suffixes", [("de", "en"), ("en", "de")])
def test_a_model_with_both_directions_is_fine_tuned_on_files_in_any_order(two_way, suffixes):
    files = [f"train.{suffix}" for suffix in suffixes]
    _, data = open_parent(ModelArguments(model=str(two_way)), DataArguments(train=files, both_directions=True))
    assert data.languages == suffixes
    with pytest.raises(ValueError, match="translates between de and en, not from fr"):
        open_parent(ModelArguments(model=str(two_way)), DataArguments(train=["train.fr", "train.de"]))
