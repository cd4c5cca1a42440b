"""A training that starts from a saved model: what it takes from there, and what it refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_step import assert_equal_weights
from foreign_models import marian_tokenizer, untrained
from helpers import call_recipe, change_json, option_words, refusal, save_model, write_pairs, write_splits
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from vaswani_transformer.convert.from_transformers import from_marian
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.saved_model import SavedModel
from vaswani_transformer.options.data import DataArguments
from vaswani_transformer.options.training import ModelArguments
from vaswani_transformer.runs.fine_tuning import open_parent
from vaswani_transformer.runs.records import RunRecord


pytestmark = pytest.mark.system
PAIRS = phrasebook("train")[:20]
TUNED: dict[str, Any] = {
    "dropout": 0,
    "layer_norm_eps": 1e-5,
    "lr_scheduler_type": "constant",
    "learning_rate": 3e-3,
    "source_tokens": 2000,  # all pairs in one batch
    "target_tokens": 2000,
    "logging_steps": 1,
    "save_steps": 1,
    "average_last": 1,
    "precision": "float32",
    "num_proc": 1,
    "report_to": "none",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> dict[str, list[str]]:
    return write_splits(tmp_path_factory.mktemp("corpus"), train=len(PAIRS), test=3)


def options(corpus: dict[str, list[str]], **changes: Any) -> list[str]:
    return option_words({**TUNED, **corpus, **changes})


def tune(corpus: dict[str, list[str]], **changes: Any) -> Path:
    """Run the recipe; returns `output_dir`."""
    call_recipe("train_wmt.py", *options(corpus, **changes))
    return Path(changes["output_dir"])


@pytest.fixture(scope="module")
def tuned(corpus, lively_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    return tune(corpus, model=lively_model, output_dir=folder / "run", max_steps=2)


def log(directory: Path) -> list[dict[str, float]]:
    state = json.loads((directory / "checkpoint-2" / "trainer_state.json").read_text(encoding="utf-8"))
    return [entry for entry in state["log_history"] if "loss" in entry]


def smoothed_loss(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: list[tuple[str, str]], epsilon: float = 0.1
) -> float:
    """Cross entropy with smoothed targets (5.4), sentence by sentence, in nats a token."""
    total, tokens = 0.0, 0
    for source, target in pairs:
        labels = tokenizer(text_target=target, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(tokenizer(source, return_tensors="pt").input_ids, labels=labels).logits[0]
        expected = (1 - epsilon) * F.one_hot(labels[0], logits.shape[-1]) + epsilon / logits.shape[-1]
        total -= float((expected * logits.log_softmax(-1)).sum())
        tokens += labels.shape[1]
    return total / tokens


def test_the_first_loss_is_the_parents(tuned, lively_model):
    parent = AutoModelForSeq2SeqLM.from_pretrained(lively_model, layer_norm_eps=1e-5).eval()
    expected = smoothed_loss(parent, AutoTokenizer.from_pretrained(lively_model), PAIRS)
    losses = [entry["loss"] for entry in log(tuned)]
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[1] < 0.99 * losses[0]


def test_a_constant_rate_is_that_of_every_step(tuned, lively_model):
    assert [entry["learning_rate"] for entry in log(tuned)] == [3e-3, 3e-3]
    # Adam's first step, without decay, is the rate for every weight with a gradient much larger than epsilon.
    before, after = (load_file(path / "model.safetensors") for path in (lively_model, tuned / "checkpoint-1"))
    name = "model.decoder.layers.0.feed_forward.fc2.weight"
    torch.testing.assert_close((after[name] - before[name]).abs().median(), torch.tensor(3e-3), rtol=1e-3, atol=0)


def test_configuration_search_and_tokenizer_are_the_parents_with_the_changes(tuned, lively_model):
    before, after = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (lively_model, tuned))
    changes = {"dropout": 0.0, "layer_norm_eps": 1e-5, "source_language": "en", "target_language": "de"}
    ignored = ("transformers_version", "dtype", "_name_or_path")
    fields = [{**model.config.to_dict(), **dict.fromkeys(ignored)} for model in (before, after)]
    assert fields[1] == {**fields[0], **changes}
    assert before.generation_config.to_diff_dict() == after.generation_config.to_diff_dict()
    saved = [json.loads((path / "tokenizer.json").read_text(encoding="utf-8")) for path in (lively_model, tuned)]
    # Both depend on the last call of the tokenizer, which other tests share.
    last_call = {"padding": None, "truncation": None}
    assert {**saved[0], **last_call} == {**saved[1], **last_call}


def test_results_and_card_name_the_parent_and_its_scores(tuned, lively_model, loaded_model, tokenizer):
    record = RunRecord.load(tuned / "all_results.json")
    assert (record.parent.name, record.parent.is_on_hub) == (lively_model.name, False)
    assert record.settings.learning_rate == 3e-3
    for name in ("all_results.json", "README.md", "config.json"):  # the parent was given by its full name
        assert str(lively_model.parent) not in (tuned / name).read_text(encoding="utf-8")
    expected = smoothed_loss(loaded_model, tokenizer, phrasebook("test")[:3], epsilon=0)
    assert record.test_parent.perplexity.nats_per_token == pytest.approx(expected, rel=1e-5)
    assert record.test.perplexity.perplexity < record.test_parent.perplexity.perplexity
    card = ModelCard.load(tuned / "README.md")
    assert f"fine-tuned from `{lively_model.name}`" in card.text
    for name, scores in (("parent", record.test_parent), ("last step", record.test)):
        shown = (scores.bleu.score, scores.paper_bleu.score, scores.chrf.score, scores.perplexity.perplexity)
        assert f"| test, {name} | 3 | {' | '.join(f'{number:.2f}' for number in shown)} |" in card.text
    assert card.data.base_model is None  # no name on the Hub


@pytest.mark.parametrize(
    ("schedule", "made", "shown"),
    [({}, 0, "none"), ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 150}, 1, "1 of 150")],
    ids=["constant", "rises"],
)
def test_results_and_card_have_the_warm_up_that_was_made(corpus, lively_model, tmp_path, caplog, schedule, made, shown):
    """The minutes are over with the first step; a constant rate has no warm-up for them to cut."""
    run = tune(corpus, model=lively_model, output_dir=tmp_path / "run", max_minutes=1e-5, test=None, **schedule)
    training = RunRecord.load(run / "all_results.json").training
    assert (training.steps, training.warmup_steps) == (1, made)
    assert f"| warmup_steps | {shown} | 4,000 |" in (run / "README.md").read_text(encoding="utf-8")
    if not schedule:
        assert "warmup_steps" not in caplog.text


def test_a_resumed_training_ends_with_the_same_bits_and_has_the_same_parent(
    tuned, lively_model, saved_model, corpus, tmp_path
):
    run = tune(corpus, model=lively_model, output_dir=tmp_path / "run", max_steps=1, test=None)
    with pytest.raises(SystemExit, match=r"it differs in .*model \(.*/lively\d* then, .*/model\d* now\)"):
        tune(corpus, model=saved_model, output_dir=run, max_steps=2, resume=True)
    tune(corpus, model=lively_model, output_dir=run, max_steps=2, resume=True)
    assert_equal_weights(*(load_file(path / "model.safetensors") for path in (run, tuned)))


@pytest.fixture(scope="module")
def replay(corpus, tmp_path_factory) -> dict[str, Any]:
    """Options that mix other pairs in, in batches of which several make an epoch."""
    folder = tmp_path_factory.mktemp("replay")
    splits = {"replay": phrasebook("train")[50:90], "replay_test": phrasebook("test")[5:9]}
    files = {name: write_pairs(pairs, folder / f"{name}.en", folder / f"{name}.de") for name, pairs in splits.items()}
    budgets = {"source_tokens": 600, "target_tokens": 600}
    ratios = {"replay_ratio": 0.5, "synthetic_ratio": 2}
    return {**files, "synthetic": corpus["test"], **ratios, **budgets}


def test_mixed_corpora_are_drawn_anew_also_after_resuming(
    corpus, replay, lively_model, loaded_model, tokenizer, tmp_path, capsys
):
    whole = tune(corpus, **replay, model=lively_model, output_dir=tmp_path / "whole", max_steps=8)
    printed = capsys.readouterr().out
    assert "replay: 40 sentence pairs (dropped: empty 0, too_long 0, ratio 0); 10 drawn per epoch" in printed
    epochs = json.loads((whole / "checkpoint-8" / "trainer_state.json").read_text(encoding="utf-8"))["epoch"]
    assert 1.1 < epochs < 4  # the last step is another epoch's than the one that is resumed from
    parts = tune(corpus, **replay, model=lively_model, output_dir=tmp_path / "parts", max_steps=3)
    tune(corpus, **replay, model=lively_model, output_dir=parts, max_steps=8, resume=True)
    assert_equal_weights(*(load_file(path / "model.safetensors") for path in (parts, whole)))

    record = RunRecord.load(whole / "all_results.json")
    assert {name: (mixed.ratio, mixed.cleaning["kept"]) for name, mixed in record.data.mixed.items()} == {
        "replay": (0.5, 40),
        "synthetic": (2.0, 3),
    }
    expected_loss = smoothed_loss(loaded_model, tokenizer, phrasebook("test")[5:9], epsilon=0)
    assert record.replay_test_parent.perplexity.nats_per_token == pytest.approx(expected_loss, rel=1e-5)
    drawn = "40 pairs kept; each epoch samples 0.5 of them for each pair of the corpus"
    assert f"- Replay: replay.en and replay.de; {drawn}\n" in ModelCard.load(whole / "README.md").text


def test_default_rate_and_budgets_make_the_model_learn(corpus, lively_model, tmp_path, capsys):
    left_out = dict.fromkeys(("lr_scheduler_type", "learning_rate", "source_tokens", "target_tokens"))
    run = tune(corpus, model=lively_model, output_dir=tmp_path / "run", **left_out)
    record = RunRecord.load(run / "all_results.json")
    rate = AutoModelForSeq2SeqLM.from_pretrained(run).config.d_model ** -0.5 * 100_000**-0.5
    assert record.settings.learning_rate == pytest.approx(rate, rel=0.05)
    longest = [
        max(map(len, AutoTokenizer.from_pretrained(run)(list(side)).input_ids)) for side in zip(*PAIRS, strict=True)
    ]
    budgets = record.settings.source_tokens, record.settings.target_tokens
    assert budgets == tuple(16 * length for length in longest)  # a hundredth of these 20 pairs is less
    assert record.training.steps == 3 * 2
    assert record.test.perplexity.perplexity < 0.99 * record.test_parent.perplexity.perplexity
    name = "model.decoder.layers.0.feed_forward.fc2.weight"
    before, after = (load_file(path / "model.safetensors")[name] for path in (lively_model, run / "checkpoint-6"))
    assert (after - before).abs().max() > 3 * rate


def test_a_converted_model_keeps_its_tokenizer_its_bias_and_its_search(corpus, tmp_path):
    tokenizer = marian_tokenizer(tmp_path / "opus", separate_vocabs=True)
    pad, sizes = tokenizer.pad_token_id, (len(tokenizer.encoder), len(tokenizer.target_encoder))
    tokens = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": tokenizer.eos_token_id}
    source = untrained(
        "marian", vocab_size=sizes[0], decoder_vocab_size=sizes[1], share_encoder_decoder_embeddings=False, **tokens
    )
    parent = from_marian(source)
    parent.generation_config.update(num_beams=3, max_length=60)
    save_model(tmp_path / "parent", parent, tokenizer)
    run = tune(corpus, model=tmp_path / "parent", output_dir=tmp_path / "run", layer_norm_eps=None, max_steps=2)
    assert log(run)[0]["loss"] == pytest.approx(smoothed_loss(parent, tokenizer, PAIRS), rel=1e-5)
    result = AutoModelForSeq2SeqLM.from_pretrained(run)
    assert result.generation_config.to_diff_dict() == parent.generation_config.to_diff_dict()
    assert (result.config.layer_norm_eps, result.config.label_smoothing) == (1e-5, 0.1)
    assert torch.equal(result.lm_head.bias, parent.lm_head.bias)  # a buffer in Marian, too
    again = AutoTokenizer.from_pretrained(run)
    for text in PAIRS[0]:
        assert again(text_target=text).input_ids == tokenizer(text_target=text).input_ids


def open_changed(model: Path, folder: Path, name: str, **fields: Any) -> SavedModel:
    """Open a copy of a model to start from, with other fields in one of its files."""
    path = shutil.copytree(model, folder / "parent") / name
    change_json(path, **fields)
    data = DataArguments(train=["phrasebook"], source_language="en", target_language="de")
    return open_parent(ModelArguments(model=str(path.parent)), data)[0]


def test_what_was_measured_on_the_parent_is_not_kept(lively_model, tmp_path):
    measured = {"alignment_heads": [[0, 0]], "confidence_curve": [[-1.0, 20.0], [0.0, 60.0]]}
    measured["confidence_search"] = {"num_beams": 4, "length_penalty": 0.6}
    parent = open_changed(lively_model, tmp_path, "config.json", **measured)
    assert [getattr(parent.config, name) for name in measured] == [None] * len(measured)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("variant", "big", "the configuration of --model decides it"),
        ("vocab_size", 9, "the tokenizer of --model is used"),
        ("warmup_steps", 9, "the learning rate is constant"),
    ],
)
def test_options_that_the_parent_decides_are_refused(corpus, lively_model, tmp_path, option, value, reason):
    words = options(corpus, model=lively_model, output_dir=tmp_path / "run", max_steps=1, **{option: value})
    assert f"{option}: has no effect here; {reason}" in refusal("train_wmt.py", *words)
    assert not (tmp_path / "run" / "checkpoint-1").exists()


def test_a_model_whose_search_options_cannot_be_saved_is_refused_at_once(lively_model, tmp_path):
    with pytest.raises(ValueError, match=r"^model: .*/parent: generation_config.json: .* or unset `temperature`"):
        open_changed(lively_model, tmp_path, "generation_config.json", temperature=0.5)
