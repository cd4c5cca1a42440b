"""Scores of translations: the model's own log-probabilities, of the whole and of each word."""

import json
import re

import pytest
import torch
from foreign_models import batch, fsmt_tokenizer, inputs_of, untrained
from helpers import call_recipe
from transformers import pipeline

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.model.scores_vaswani import TranslationScorer, read_decoder


SENTENCES = [english for english, _ in phrasebook("test")[:4]]


@pytest.fixture
def translator(lively_model):
    return pipeline("translation", model=str(lively_model))


@torch.no_grad()
def by_hand(model, source, output_ids):
    """Log-probability of each token of one translation, each from a pass of its own over what precedes it."""
    found = []
    for place in range(1, len(output_ids)):
        logits = model(input_ids=source[None], decoder_input_ids=output_ids[None, :place]).logits[0, -1]
        found.append(float(torch.log(logits.double().softmax(-1))[output_ids[place]]))
    return found


@pytest.mark.parametrize(
    "options", [{}, {"num_return_sequences": 2, "max_new_tokens": 12}, {"num_beams": 1, "max_new_tokens": 5}]
)
def test_scores_are_sums_of_the_logarithms_of_each_tokens_probability(translator, options):
    found = translator(SENTENCES, return_scores=True, return_tensors=True, return_text=True, **options)
    for sentence, records in zip(SENTENCES, found, strict=True):
        source = torch.tensor(translator.tokenizer(sentence).input_ids)
        for record in records if isinstance(records, list) else [records]:
            ids = record["translation_token_ids"]
            expected = by_hand(translator.model, source, ids)
            assert record["log_probability"] == pytest.approx(sum(expected), abs=1e-4)
            length = len(expected)
            assert record["score"] == pytest.approx(sum(expected) / ((5 + length) / 6) ** 0.6, abs=1e-4)
            words = record["word_log_probabilities"]
            assert record["words"] == record["translation_text"].split()
            assert len(words) == len(record["words"])
            is_ended = int(ids[-1]) == translator.tokenizer.eos_token_id
            assert sum(words) == pytest.approx(sum(expected[: length - is_ended]), abs=1e-4)


def test_given_translations_are_scored(two_way):
    translator, pairs = pipeline("translation_en_to_de", model=str(two_way)), phrasebook("test")[:4]
    sources, targets = zip(*pairs, strict=True)
    sources, targets = [*sources[:3], {"text": sources[3]}], [*targets[:3], ""]
    found = [*translator.score(sources, targets), *translator.score("Hunde!", "Dogs!", tgt_lang="en")]
    tagged = [*(f"<2de> {source}" for source, _ in pairs), "<2en> Hunde!"]
    for record, source, target in zip(found, tagged, [*targets, "Dogs!"], strict=True):
        ids = torch.tensor([0, *translator.tokenizer(target).input_ids])
        expected = sum(by_hand(translator.model, torch.tensor(translator.tokenizer(source).input_ids), ids))
        assert record["log_probability"] == pytest.approx(expected, abs=1e-4)
        assert record["score"] == pytest.approx(expected / ((5 + len(ids) - 1) / 6) ** 0.6, abs=1e-4)
        assert record["words"] == target.split()
    with pytest.raises(ValueError, match=r"^score: there are 2 sources and 1 targets"):
        translator.score(["a", "b"], ["c"])


def test_given_translations_are_scored_by_the_pipelines_length_penalty(lively_model):
    translator = pipeline(
        "translation", model=str(lively_model), length_penalty=2.0, length_penalty_type="transformers"
    )
    (record,) = translator.score(SENTENCES[0], "Die Hunde schlafen.")
    assert record["score"] == pytest.approx(record["log_probability"] / record["tokens"] ** 2.0)
    with pytest.raises(TypeError, match="target_language"):
        translator.score("Hunde!", "Dogs!", target_language="en")


def test_targets_that_the_tokenizer_cannot_encode_are_not_scored(translator, tmp_path):
    tokenizer = fsmt_tokenizer(tmp_path / "fsmt", separate_vocabs=True)
    with pytest.raises(ValueError, match=r"^target: the model's tokenizer has two vocabularies"):
        pipeline("translation", model=translator.model, tokenizer=tokenizer).score("a", "b")


@pytest.mark.parametrize("prefix", [None, [[5, 6]], [[0, 5, 6, 7]]])
@pytest.mark.parametrize("kind", ["gnmt", "transformers"])
def test_the_score_is_that_by_which_the_search_ranks(translator, kind, prefix):
    search = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 1.3, "length_penalty_type": kind}
    inputs = translator.tokenizer(SENTENCES[:3], return_tensors="pt", padding=True)
    given = {}
    if prefix is not None:
        given = {"decoder_input_ids": torch.tensor(prefix).expand(3, -1)}
        search["decoder_input_ids"] = torch.tensor(prefix)
    expected = translator.model.generate(
        **inputs, **{**search, **given}, return_dict_in_generate=True, output_scores=True
    )
    found = translator(SENTENCES[:3], return_scores=True, **search)
    scores = [record["score"] for records in found for record in records]
    assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)


def test_large_batches_are_scored_in_parts(translator, monkeypatch):
    inputs = translator.tokenizer(SENTENCES, return_tensors="pt", padding=True)
    output_ids = translator.model.generate(**inputs)
    whole = read_decoder(translator.model, inputs, output_ids)[0]
    monkeypatch.setattr("vaswani_transformer.model.scores_vaswani._TOKENS_AT_ONCE", 1)
    assert torch.allclose(read_decoder(translator.model, inputs, output_ids)[0], whole, atol=1e-5)


def test_translations_of_a_marian_model_are_scored_too():
    model = untrained("marian")
    sources = batch(model)
    inputs = inputs_of(model, sources)
    output_ids = model.generate(**inputs, num_beams=2, max_new_tokens=6)
    found = read_decoder(model, inputs, output_ids)[0]
    expected = by_hand(model, sources[-1], output_ids[-1])
    assert found[-1].tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "text", ["thé 🐈 ฉัน 日本", "a  b\n", " x", "", "one\u2028line \x85 two", "man's (314) $a$", "\u00a0a\u00a0"]
)
def test_every_word_of_any_text_has_a_value(translator, text):
    model, tokenizer = translator.model, translator.tokenizer
    inputs = tokenizer(["a"], return_tensors="pt")
    target = torch.tensor([[0, *tokenizer(text).input_ids, 0]])
    (score,) = TranslationScorer(model, tokenizer, 1.0, "gnmt").score(inputs, target)
    spoken = tokenizer.decode(target[0], skip_special_tokens=True)
    assert "".join(score.words) == "".join(spoken.split())
    if not re.search("[\u0e00-\u0e7f\u4e00-\u9fff]", spoken):
        assert score.words == spoken.split()
    assert len(score.word_log_probabilities) == len(score.words)
    values = read_decoder(model, inputs, target)[0][0].tolist()[:-1]
    assert score.log_probability == pytest.approx(sum(values), abs=1e-4)
    if score.word_log_probabilities:
        assert sum(score.word_log_probabilities) == pytest.approx(sum(values[:-1]), abs=1e-4)


def test_a_blank_text_has_a_score_of_zero(translator):
    empty = {"log_probability": 0.0, "score": 0.0, "tokens": 0, "words": [], "word_log_probabilities": []}
    empty["confidence"] = None
    assert translator([" ", SENTENCES[0]], return_scores=True)[0] == {"translation_text": "", **empty}


def test_a_file_of_pairs_has_the_pipelines_scores(translator, lively_model, tmp_path):
    text, output = tmp_path / "text.en", tmp_path / "out.jsonl"
    text.write_text("\n".join(["", *SENTENCES]) + "\n", encoding="utf-8")
    options = ["--model", str(lively_model), "--input", str(text), "--return_scores"]
    call_recipe("translate.py", *options, "--output", str(output), "--num_return_sequences", "2")
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    expected = [
        each for pair in translator(["", *SENTENCES], return_scores=True, num_return_sequences=2) for each in pair
    ]
    assert len(rows) == len(expected)
    for row, record in zip(rows, expected, strict=True):
        assert row["target"] == record["translation_text"]
        for name in ("log_probability", "score", "word_log_probabilities"):
            assert row[name] == pytest.approx(record[name], abs=2e-4)
