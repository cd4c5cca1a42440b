"""BLEU against the sacreBLEU command, and as a metric that needs nothing else of the package."""

import json
import shutil

import evaluate
import pytest
from helpers import run_python

from vaswani_transformer.data.phrasebook.corpus import phrasebook
from vaswani_transformer.evaluation import bleu
from vaswani_transformer.evaluation.bleu import Bleu


@pytest.fixture
def hypotheses_and_references():
    """German sentences, and the same with some words lost or swapped."""
    references = [german for _, german in phrasebook("validation")[:40]]
    hypotheses = []
    for number, reference in enumerate(references):
        words = reference.split(" ")
        if number % 3 == 0:
            words = words[:-2]
        elif number % 3 == 1:
            words = [*words[1::-1], *words[2:]]
        hypotheses.append(" ".join(words))
    return hypotheses, references


@pytest.mark.system
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_equals_the_sacrebleu_command(hypotheses_and_references, tmp_path, lowercase):
    hypotheses, references = hypotheses_and_references
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "hyp", "-w", "12"]
    expected = json.loads(run_python([*command, *["-lc"] * lowercase]).stdout)
    ours = Bleu().compute(predictions=hypotheses, references=references, lowercase=lowercase)
    assert 0 < ours["score"] < 100
    assert ours["score"] == pytest.approx(expected["score"], abs=1e-9)
    assert ours["signature"] == expected["signature"]


def test_bleu_loads_by_path_without_network_and_takes_several_references(hypotheses_and_references):
    hypotheses, references = hypotheses_and_references
    metric = evaluate.load(bleu.__file__)
    several = [[reference, hypothesis] for hypothesis, reference in zip(hypotheses, references, strict=True)]
    assert metric.compute(predictions=hypotheses, references=several)["score"] == pytest.approx(100.0)
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        metric.add(prediction=hypothesis, reference=reference)
    one_by_one = metric.compute()
    assert one_by_one == Bleu().compute(predictions=hypotheses, references=references)
    with pytest.raises(ValueError, match="same number"):
        metric.compute(predictions=["a", "b"], references=[["a"], ["a", "b"]])


# What the Hub's Space of a metric does with its file and the table that a visitor fills in, without the package.
_METRIC_SPACE = """
import sys

sys.modules["vaswani_transformer"] = None
import evaluate
from evaluate.utils.gradio import infer_gradio_input_types, parse_gradio_data
from pandas import DataFrame

module = evaluate.load("./bleu")
kinds = infer_gradio_input_types(module.features[0].values())
table = DataFrame({"predictions": ['"Ein Hund bellt laut."', ""], "references": ['"Ein Hund bellt sehr laut."', ""]})
print(module.compute(**parse_gradio_data(table, kinds)))
print(module.name, all([module.description, module.citation, module.inputs_description]))
"""


@pytest.mark.system
def test_bleu_alone_in_a_folder_is_a_metric(hub, tmp_path):
    (tmp_path / "bleu").mkdir()
    shutil.copy(bleu.__file__, tmp_path / "bleu" / "bleu.py")
    done = hub.run(_METRIC_SPACE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = Bleu().compute(predictions=["Ein Hund bellt laut."], references=["Ein Hund bellt sehr laut."])
    assert done.stdout.splitlines() == [str(expected), "bleu True"]
