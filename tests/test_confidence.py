"""Confidence: a monotone curve from log-probability to chrF, fitted on a development set and kept by the model."""

import logging
import shutil

import numpy as np
import pytest
from helpers import call_recipe, change_json, refusal, write_pairs
from sacrebleu.metrics import CHRF
from transformers import GenerationConfig, pipeline

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.evaluation import confidence
from vaswani_transformer.evaluation.confidence import fit_curve, measure_confidence
from vaswani_transformer.model.scores_vaswani import _interpolate
from vaswani_transformer.runs.records import ScoreRecord
from vaswani_transformer.system.manifests import MODEL_FILES, Manifest


pytestmark = pytest.mark.usefixtures("unbroken_lines")


WORDS = [*"abcdefghij", "dog", "men", "green", "grass", "house", "doors", "summer", "sit", "near", "old"]


def test_the_curve_is_isotonic_regression_of_group_means():
    """Groups of 20 have the mean values 9.5, 29.5, and so on; where quality falls, groups are pooled."""
    quality = np.repeat([10.0, 30, 20, 40, 60, 70, 30, 80, 90, 90.5], 20)
    order = np.random.default_rng(0).permutation(200)
    curve = fit_curve(np.arange(200.0)[order], quality[order])
    pooled = [[39.5, 25], [69.5, 40], [109.5, 53.33], [149.5, 80], [169.5, 90], [189.5, 90.5]]
    assert curve == [[9.5, 10], *pooled, [199, 90.5]]


def test_a_perfect_measure_is_calibrated_and_finds_the_worst():
    draw = np.random.default_rng(0)
    references = [[" ".join(draw.choice(WORDS, 12))] for _ in range(400)]
    lines = []
    for (reference,) in references:
        kept = draw.random(12) < draw.uniform(0.3, 1)
        lines.append(" ".join(word if keep else "x" for word, keep in zip(reference.split(), kept, strict=True)))
    quality = [CHRF().sentence_score(line, known).score for line, known in zip(lines, references, strict=True)]
    report = measure_confidence(quality, lines, references, draw.permutation(400))
    assert report.rank_correlation == pytest.approx(1)
    assert report.calibration_error < 2
    assert report.tokens == [9, 389]  # 95 % of them
    for share in (0, 0.1, 0.2):
        best = sorted(range(400), key=lambda row: quality[row])[round(400 * share) :]
        expected = CHRF().corpus_score([lines[row] for row in best], [[references[row][0] for row in best]]).score
        assert report.remaining[f"{share:g}"] == pytest.approx(expected)


def test_of_translations_that_are_all_alike_nothing_is_learned_and_too_few_are_refused():
    assert measure_confidence([*range(200)], ["b"] * 200, [["a"]] * 200, [9] * 200) is None
    varied = [["a", "b"][row % 2] for row in range(200)]
    assert measure_confidence([*range(200)], varied, [["a"]] * 200, [9] * 200) is not None
    assert measure_confidence([*range(199)], varied[:199], [["a"]] * 199, [9] * 199) is None


@pytest.mark.parametrize("value", [-2.0, -1.99, -1.0, -0.7, -0.5, -0.3, -0.2])
def test_between_points_the_curve_is_linear_and_outside_there_is_none(value):
    curve = [[-2.0, 10.0], [-1.0, 30.0], [-0.5, 30.0], [-0.2, 90.0], [-0.2, 90.0]]
    assert _interpolate(curve, value) == pytest.approx(np.interp(value, *zip(*curve, strict=True)))
    assert _interpolate(curve, value - 2) is None
    assert _interpolate(curve, value + 2) is None
    assert _interpolate([[value, 5.0]], value) == 5.0


@pytest.fixture
def development_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs([*phrasebook("test")[:200], ("", "")], tmp_path / "valid.en", tmp_path / "valid.de")
    return ["--source", "valid.en", "--reference", "valid.de"]


@pytest.fixture
def any_correlation(monkeypatch):
    """Keeps the confidence of models with random weights, too."""
    monkeypatch.setattr(confidence, "LEAST_CORRELATION", -1.0)


def test_a_confidence_that_predicts_nothing_is_not_kept(development_set, lively_model, tmp_path):
    model = shutil.copytree(lively_model, tmp_path / "model")
    change_json(model / "generation_config.json", max_new_tokens=6)
    words = ["--model", model, *development_set, "--confidence", "--output_dir", "scores"]
    assert "do not predict the quality of these translations (rank correlation -0." in refusal("score.py", *words)
    assert open_model(model).config.confidence_curve is None
    assert (tmp_path / "scores" / "confidence.png").exists()


def test_the_model_keeps_what_was_measured(development_set, lively_model, tmp_path, capsys, any_correlation):
    model = shutil.copytree(lively_model, tmp_path / "model")
    change_json(model / "generation_config.json", max_new_tokens=6)
    before = pipeline("translation", model=str(model))("Dogs!", return_scores=True)[0]
    assert before["confidence"] is None
    Manifest.from_files(model, MODEL_FILES).save(model)
    call_recipe("score.py", "--model", model, *development_set, "--confidence", "--output_dir", "scores")
    record = ScoreRecord.load(tmp_path / "scores" / "results.json")
    assert (tmp_path / "scores" / "confidence.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "chrF without the least confident" in printed
    range_shown = [f"{record.confidence.curve[place][0]:.2f}" for place in (0, -1)]
    assert f"measured from {' to '.join(range_shown)} of log-probability a token" in printed
    saved = open_model(model)  # which compares the files with their manifest
    assert saved.config.confidence_curve == record.confidence.curve
    assert saved.config.confidence_tokens == record.confidence.tokens
    assert saved.config.confidence_search == {"num_beams": 4, "length_penalty": 0.6}
    found = pipeline("translation", model=str(model))(["Dogs!", ""], return_scores=True)
    mean = found[0]["log_probability"] / found[0]["tokens"]
    assert found[0]["confidence"] is not None
    assert found[0]["confidence"] == pytest.approx(_interpolate(record.confidence.curve, mean))
    assert {**found[0], "confidence": None} == before
    assert found[1]["confidence"] is None  # of a blank line


def test_a_text_with_many_translations_of_other_lengths_is_told_apart(lively_model, caplog):
    logging.getLogger("transformers").propagate = True
    translator = pipeline("translation", model=str(lively_model))
    translator.model.generation_config.max_new_tokens_over_source = 2
    config, texts = translator.model.config, [f"Dogs {'and dogs ' * (place % 5)}bark!" for place in range(40)]
    tokens = [each["tokens"] for each in translator(texts, return_scores=True)]
    config.confidence_curve = [[-99.0, 10.0], [0.0, 20.0]]
    for low, high in ([1, 999], [min(tokens), max(tokens)], [min(tokens) + 1, max(tokens)], [1, 1]):
        config.confidence_tokens = [low, high]
        caplog.clear()
        given = translator(texts, return_scores=True)
        is_unlike = [not low <= number <= high for number in tokens]
        assert [each["confidence"] is None for each in given] == is_unlike
        is_told = any("confidence is unreliable here" in message for message in caplog.messages)
        assert is_told == (sum(is_unlike) > 6)
        translator(texts[:19], return_scores=True)  # too few to tell
        assert len(caplog.messages) == is_told


@pytest.mark.parametrize(
    "changed",
    [
        {"num_beams": 1},
        {"length_penalty": 2.0},
        {"generation_config": GenerationConfig(num_beams=2, max_new_tokens=5)},
    ],
    ids=lambda changed: next(reversed(changed)),
)
def test_only_the_best_translation_of_the_models_own_search_has_a_confidence(changed, lively_model):
    translator = pipeline("translation", model=str(lively_model))
    translator.model.config.confidence_curve = [[-99.0, 10.0], [0.0, 20.0]]
    assert translator("Dogs!", return_scores=True, **changed)[0]["confidence"] is None
    best, second = translator("Dogs!", return_scores=True, num_beams=4, num_return_sequences=2)
    assert 10 < best["confidence"] < 20
    assert second["confidence"] is None
    translator.model.config.confidence_search = {"num_beams": 4, "length_penalty": 0.6}
    assert translator("Dogs!", return_scores=True)[0]["confidence"] == best["confidence"]
    translator.model.generation_config.num_beams = 2
    assert translator("Dogs!", return_scores=True)[0]["confidence"] is None


def test_each_direction_has_its_own_curve(development_set, two_way, tmp_path, any_correlation):
    model = shutil.copytree(two_way, tmp_path / "model")
    into_english = {"en": [[-9.0, 60.0], [0.0, 70.0]]}
    open_model(model).update_config(confidence_curve=into_english)
    options = ["--source_language", "en", "--target_language", "de", "--confidence", "--output_dir", "scores"]
    call_recipe("score.py", "--model", model, *development_set, *options)
    kept = open_model(model).config.confidence_curve
    measured = ScoreRecord.load(tmp_path / "scores" / "results.json").confidence.curve
    assert kept == {**into_english, "de": measured}
    open_model(model).update_config(confidence_search={"num_beams": 9})  # as of a search that the model has no longer
    call_recipe("score.py", "--model", model, *development_set, *options, "--overwrite")
    assert open_model(model).config.confidence_curve == {"de": measured}
