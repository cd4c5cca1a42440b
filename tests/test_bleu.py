"""BLEU as a metric of `evaluate`. Its values are compared with sacreBLEU's in test_score.py."""

import evaluate
import pytest

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation import bleu
from vaswani_transformer.evaluation.bleu import Bleu


def test_bleu_loads_by_path_without_network_and_takes_several_references():
    references = [german for _, german in phrasebook("validation")[:40]]
    hypotheses = [" ".join(text.split(" ")[: -1 if number % 3 else None]) for number, text in enumerate(references)]
    metric = evaluate.load(bleu.__file__)
    several = [[reference, hypothesis] for hypothesis, reference in zip(hypotheses, references, strict=True)]
    assert metric.compute(predictions=hypotheses, references=several)["score"] == pytest.approx(100.0)
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        metric.add(prediction=hypothesis, reference=reference)
    one_by_one = metric.compute()
    assert 0 < one_by_one["score"] < 100
    assert one_by_one == Bleu().compute(predictions=hypotheses, references=references)
    with pytest.raises(ValueError, match="same number"):
        metric.compute(predictions=["a", "b"], references=[["a"], ["a", "b"]])
