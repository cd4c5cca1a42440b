"""evaluate: the package's metric over the translations of a pipeline."""

from pathlib import Path

import evaluate
import pytest
from datasets import Dataset
from transformers import pipeline

from vaswani_transformer import evaluation
from vaswani_transformer.evaluation import multi_bleu


FILE = str(Path(evaluation.__file__).with_name("multi_bleu.py"))


def test_pipeline_and_metric(model, tokenizer, pairs, translate, row):
    """pipeline("translation") over a dataset, scored by evaluate.load of the package's metric"""
    rows = Dataset.from_list([{"source": source, "reference": target} for source, target in pairs])
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    found = [output["translation_text"] for output in translator(rows["source"])]
    expected = translate(model)
    assert found == expected
    metric = evaluate.load(FILE)
    for text, reference in zip(found, rows["reference"], strict=True):
        metric.add(prediction=text, reference=reference)
    score = metric.compute()["score"]
    assert score == multi_bleu(expected, rows["reference"])
    row.evidence(BLEU=score, translations=len(found))


def test_evaluator(model, tokenizer, pairs, row):
    """evaluate.evaluator("translation"), which refers to a class that transformers 5 removed, whatever the model"""
    rows = Dataset.from_list([{"source": source, "reference": target} for source, target in pairs])
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    with pytest.raises(AttributeError, match="TFPreTrainedModel") as error:
        evaluate.evaluator("translation").compute(
            translator, rows, metric=evaluate.load(FILE), input_column="source", label_column="reference"
        )
    row.refused(error.value)
