"""Forced words: in every translation they occur as whole words."""

import itertools
import logging
import re

import pytest
from helpers import call_recipe
from models import lively
from transformers import pipeline

from vaswani_transformer import Ensemble, ForcedPhrases, VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.phrases import with_forced_words
from vaswani_transformer.model.translation_vaswani import translate_in_batches


TEXTS = ["The old man reads a book.", "Today the children do not sleep.", "His mother sleeps.", "14:35"]
WORDS = [
    ["alte M"],
    ["der", "Hund"],
    ["Hund", "Katze"],
    ["trinkt Tee."],
    ["3", "ö"],
    [["Katze", "Katzen"], "ß"],
]


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def words_tokenizer(request):
    lines = [line for pair in phrasebook("train")[:2000] for line in pair]
    return VaswaniTokenizer.train([*lines, "3"], vocab_size=420, model=request.param, show_progress=False)


def occurs(word, text):
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_forced_words_are_whole_words_of_every_translation(words, words_tokenizer):
    loop = with_forced_words({"force_words": words}, words_tokenizer)
    for seed, (num_beams, returned) in enumerate([(2, 1), (4, 1), (20, 2)]):
        model = lively(len(words_tokenizer), seed)
        settings = {"num_beams": num_beams, "num_return_sequences": returned, "max_new_tokens": 25}
        for _, ranked in translate_in_batches(model, words_tokenizer, TEXTS, **loop, **settings):
            for word in words:
                alternatives = [word] if isinstance(word, str) else word
                for each in itertools.chain.from_iterable(ranked):
                    assert any(occurs(alternative, each.text) for alternative in alternatives), each.text


@pytest.mark.parametrize("words", [[""], ["Hund", [" "]], ["<unk>\u2603"]], ids=str)
def test_what_the_tokenizer_cannot_write_is_refused(words):
    tokenizer = VaswaniTokenizer.train(["Hund Katze"] * 9, vocab_size=40, model="wordpiece", min_frequency=1)
    with pytest.raises(ValueError, match=r"^force_words: the tokenizer writes '.*' as '.*'; give other words"):
        ForcedPhrases.from_words(words, tokenizer)


@pytest.mark.parametrize("words", ["Hund", [], [[]], [[5]], b"Hund", [None]])
def test_what_is_no_list_of_words_is_refused(words, tokenizer):
    with pytest.raises(ValueError, match=r"^force_words: is .*; give a list of phrases"):
        with_forced_words({"force_words": words}, tokenizer)


def test_an_ensemble_does_not_give_way_to_forced_words(tokenizer):
    options = {"force_words": ["Hund"], "custom_generate": Ensemble([lively(len(tokenizer))])}
    with pytest.raises(ValueError, match=r"^force_words: are for the model's search alone"):
        with_forced_words(options, tokenizer)


def test_the_pipeline_and_translate_py_force_words(lively_model, tmp_path, monkeypatch, caplog):
    logging.getLogger("transformers").propagate = True
    translator = pipeline("translation_en_to_de", model=str(lively_model))
    text = "The old man reads a book. His mother sleeps."
    (record,) = translator(text, force_words=["Hund", "alte M"], return_scores=True, num_beams=8)
    assert occurs("Hund", record["translation_text"])
    assert occurs("alte M", record["translation_text"])
    assert record["log_probability"] < 0
    assert any("force_words: applies to a single sentence" in message for message in caplog.messages)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.en").write_text(f"{text}\n", encoding="utf-8")
    options = ["--model", lively_model, "--input", "in.en", "--output", "out.de", "--num_beams", "8"]
    call_recipe("translate.py", *options, "--force_words", "Hund", "alte M")
    assert (tmp_path / "out.de").read_text(encoding="utf-8") == record["translation_text"] + "\n"
