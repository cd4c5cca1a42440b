"""Languages of corpora, settled by options, models and the names of files."""

import pytest

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.data.corpus_languages import choose_languages


TAGS = {"de": 3, "en": 4}


@pytest.mark.parametrize("names", [("a.de", "a.en"), ("x.de.gz", "b"), ("b", "en-de.en"), ("de.txt", "en.txt")])
def test_files_named_after_another_language_are_refused(names):
    source, target = f"source_language: is en, but {names[0]} is in de", f"target_language: is de, but {names[1]} is in"
    with pytest.raises(ValueError, match=f"^({source}|{target})"):
        choose_languages([names], "en", "de")
    assert choose_languages([names], "de", "en") == ("de", "en")


@pytest.mark.parametrize(
    ("corpora", "named", "languages"),
    [
        ([["train.en", "train.fr"]], (None, None), ("en", "fr")),
        ([["x.pt_BR.gz", "x.zh-TW.txt.xz"]], (None, None), ("pt_BR", "zh-TW")),
        ([["x.src", "x.tgt"], ["v.fr", "v.en"]], (None, None), ("fr", "en")),
        ([["x.src", "x.fr"]], ("en_GB", None), ("en_GB", "fr")),
        ([["TRAIN.EN.GZ", "train.DE.Txt"]], (None, None), ("en", "de")),
        ([["x.eng", "x.zho_Hant.gz"]], (None, None), ("eng", "zho_Hant")),
        ([["x.eng_Latn", "x.yue"]], ("en", None), ("en", "yue")),
        ([["x.new", "x.in"], ["x.eng", "x.deu"]], (None, None), ("eng", "deu")),
        ([["a.jsonl", "b.csv"], ["phrasebook"], ["some/dataset"]], ("nl", "eo"), ("nl", "eo")),
        ([["a.en", "a.de"]], ("source", "target"), ("source", "target")),
    ],
)
def test_languages_are_those_that_suffixes_say_unless_named(corpora, named, languages):
    assert choose_languages(corpora, *named) == languages


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (("english", "de"), "source_language: english is the name of a language; give its code, en"),
        (("en", "German"), "target_language: German is the name of a language; give its code, de"),
    ],
)
def test_a_language_is_given_by_its_code(named, message):
    for models in ([], [VaswaniConfig(source_language="en", target_language="de")]):
        with pytest.raises(ValueError, match=f"^{message}$"):
            choose_languages([["a.txt", "b.txt"]], *named, models)


@pytest.mark.parametrize(
    ("files", "named", "missing"),
    [
        (["a.src", "a.tgt"], (None, None), "source_language, target_language"),
        (["a.src", "a.de"], (None, None), "source_language"),
        (["a.src", "a.tgt"], ("en", None), "target_language"),
        (["some/dataset"], (None, "en"), "source_language"),
    ],
)
def test_languages_that_nothing_says_are_asked_for(files, named, missing):
    with pytest.raises(ValueError, match=f"^{missing}: cannot .* give --{missing.replace(', ', ' and --')}$"):
        choose_languages([files], *named)


@pytest.mark.parametrize(
    ("files", "given", "expected"),
    [
        (["a.de", "a.en"], (None, None), ("de", "en")),
        (["a.src", "a.en.gz"], (None, None), ("de", "en")),
        (["a.txt", "a.tok"], ("de", None), ("de", "en")),
        (["a.jsonl"], (None, "de"), ("en", "de")),
    ],
)
def test_suffixes_tell_the_direction_of_a_model_with_both(files, given, expected):
    both, one = (VaswaniConfig(source_language="en", target_language="de", language_tags=tags) for tags in (TAGS, None))
    assert choose_languages([files], *given, [both], is_required=True) == expected
    assert choose_languages([["a.txt", "a.tok"]], models=[both]) == ("en", "de")
    with pytest.raises(ValueError, match="name the target"):
        choose_languages([["a.txt", "a.tok"]], models=[both], is_required=True)
    with pytest.raises(ValueError, match=r"source_language: is en, but a\.de is in de"):
        choose_languages([["a.de", "a.en"]], models=[one])


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        ({}, ("fr", "nl"), ("fr", "nl")),
        ({"source_language": "de", "target_language": "en"}, (None, None), ("de", "en")),
        ({"source_language": "de", "target_language": "en"}, (None, "en_GB"), ("de", "en_GB")),
        ({"language_tags": TAGS}, (None, "en"), ("de", "en")),
        ({"language_tags": TAGS}, ("en", None), ("en", "de")),
    ],
)
def test_languages_are_the_models_unless_others_are_given(model, given, expected):
    assert choose_languages([], *given, [VaswaniConfig(**model)]) == expected
    with pytest.raises(ValueError, match=r"not (from )?it"):
        choose_languages([], "it", "fr", [VaswaniConfig(**model), VaswaniConfig(source_language="nl")])
