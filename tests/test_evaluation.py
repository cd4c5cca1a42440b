"""BLEU against the sacreBLEU command, perplexity against a loop, translation against one sentence at a time."""

import json
import math
import shutil
from types import SimpleNamespace

import evaluate
import pytest
import torch
from helpers import run_python
from transformers import AutoModelForSeq2SeqLM

from vaswani_transformer.data import encode_corpus, load_parallel_corpus
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation import Bleu, bleu, perplexity, translate_corpus, translation
from vaswani_transformer.experiments import plot_learning_curve


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
print(module.name, all([module.description, module.citation, module.inputs_description, module.info.reference_urls]))
"""


def test_bleu_alone_in_a_folder_is_a_metric(hub, tmp_path):
    (tmp_path / "bleu").mkdir()
    shutil.copy(bleu.__file__, tmp_path / "bleu" / "bleu.py")
    done = hub.run(_METRIC_SPACE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = Bleu().compute(predictions=["Ein Hund bellt laut."], references=["Ein Hund bellt sehr laut."])
    assert done.stdout.splitlines() == [str(expected), "bleu True"]


@torch.no_grad()
@pytest.mark.parametrize("tokens_per_batch", [1, 60, 10000])
def test_perplexity_is_that_of_a_loop_over_sentences(saved_model, tokenizer, tokens_per_batch):
    model = AutoModelForSeq2SeqLM.from_pretrained(saved_model).eval()
    corpus = load_parallel_corpus(["phrasebook"], "en", "de", "validation").select(range(15))
    nats, tokens = 0.0, 0
    for row in corpus["translation"]:
        source = tokenizer(row["en"], return_tensors="pt").input_ids
        target = tokenizer(row["de"]).input_ids
        logits = model(source, decoder_input_ids=torch.tensor([[0, *target[:-1]]])).logits[0].double()
        nats -= sum(float(logits[i].log_softmax(-1)[token]) for i, token in enumerate(target))
        tokens += len(target)
    encoded = encode_corpus(corpus, tokenizer, "en", "de")
    result = perplexity(model, tokenizer, encoded, tokens_per_batch)
    assert result["tokens"] == tokens
    assert result["nats_per_token"] == pytest.approx(nats / tokens, rel=1e-6)
    assert result["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)


@pytest.fixture
def corpus_and_translations(lively_model, tokenizer):
    """A model, sentences, and what it makes of each of them alone."""
    model = AutoModelForSeq2SeqLM.from_pretrained(lively_model).eval()
    sentences = [english for english, _ in phrasebook("test")[:10]]
    sentences[3:3] = ["", "  ", " spaces around  "]
    expected = []
    for sentence in sentences:
        inputs = tokenizer(sentence.strip(), return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=10)[0]
        expected.append(tokenizer.decode(output, skip_special_tokens=True) if sentence.strip() else "")
    assert len(set(expected)) >= len(expected) - 2
    return model, sentences, expected


def test_translations_come_in_order_whatever_the_batches(corpus_and_translations, tokenizer):
    model, sentences, expected = corpus_and_translations
    for tokens in (1, 40, 5000):
        assert translate_corpus(model, tokenizer, sentences, tokens, max_new_tokens=10) == expected
    assert translate_corpus(model, tokenizer, ["", " "]) == ["", ""]
    assert translate_corpus(model, tokenizer, []) == []


@pytest.mark.parametrize("processes", [2, 3, 20])
def test_processes_translate_equal_shares_and_each_sentence_once(
    corpus_and_translations, tokenizer, monkeypatch, processes
):
    model, sentences, expected = corpus_and_translations
    gathered: list[tuple[int, str]] = []
    shares = []

    def gather(mine):
        shares.append(len(mine))
        gathered.extend(mine)
        return gathered

    monkeypatch.setattr(translation, "gather_object", gather)
    for rank in range(processes):
        state = SimpleNamespace(num_processes=processes, process_index=rank, is_main_process=rank == 0)
        monkeypatch.setattr(translation, "PartialState", lambda state=state: state)
        result = translate_corpus(model, tokenizer, sentences, max_new_tokens=10)
    assert result == expected  # the last to gather has all of them, and none twice
    assert max(shares) - min(shares) <= 1


def test_learning_curve_is_a_picture_of_what_was_logged(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, *a, **k: drawn.append((x, y)) or plot(self, x, y, *a, **k))
    history = [
        {"step": 10, "loss": 5.0, "learning_rate": 0.1},
        {"step": 15, "eval_loss": 4.0},
        {"step": 20, "loss": 3.0, "learning_rate": 0.2},
    ]
    plot_learning_curve(history, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert drawn == [([10, 20], [5.0, 3.0]), ([15], [4.0]), ([10, 20], [0.1, 0.2])]
