"""BPE-dropout: the distribution of the sampled segmentations, and training with them."""

import json
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from distributed_step import RecordingTrainer, make_trainer

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.data.bpe_dropout import BpeDropout
from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.data.resampling import ResampledPairs
from vaswani_transformer.parsing.tokenizer import VaswaniParsingTokenizer


TEXTS = [
    "",
    " ",
    "The man sleeps.",
    "  two  spaces\tand\u00a0others \n",
    "</s> <pad> <2de> 123,456 ... a1b2",
    "日本語 ภาษาไทย 👩‍👩‍👧 e\u0301 \x00 \U0001f600\U0001f600 ß" + "x" * 250 + "é" * 120,
]


@pytest.fixture(scope="module")
def pairs(tokenizer: VaswaniTokenizer) -> Dataset:
    rows = [{"translation": {"en": english, "de": german}} for english, german in phrasebook("validation")[:200]]
    return encode_corpus(Dataset.from_list(rows), tokenizer, "en", "de")


@pytest.fixture
def model(tokenizer: VaswaniTokenizer) -> VaswaniForConditionalGeneration:
    torch.manual_seed(0)
    widths = {"d_model": 16, "d_ff": 20, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=len(tokenizer), dropout=0.1, **widths))


def dropout_trainer(model: Any, tokenizer: VaswaniTokenizer, pairs: Dataset, output_dir: Path, **settings: Any):
    settings = {"source_tokens": 600, "target_tokens": 600, "bpe_dropout": 0.1, "max_steps": 4, **settings}
    return make_trainer(model, tokenizer, output_dir, train_dataset=pairs, **settings)


# The distribution.


def exact_distribution(tokenizer: VaswaniTokenizer, word: str, probability: float) -> dict[tuple[str, ...], float]:
    """Algorithm 1 of Provilkov et al., each set of dropped merges in turn."""
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    rank = {tuple(pair): number for number, pair in enumerate(merges)}

    @cache
    def after(split: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        possible = sorted((rank[pair], place) for place, pair in enumerate(pairwise(split)) if pair in rank)
        outcomes: dict[tuple[str, ...], float] = defaultdict(float)
        for kept in product((False, True), repeat=len(possible)):
            weight = np.prod([1 - probability if keep else probability for keep in kept])
            left = [place for (_, place), keep in zip(possible, kept, strict=True) if keep]
            if not left:
                outcomes[split] += weight
                continue
            merged = (*split[: left[0]], split[left[0]] + split[left[0] + 1], *split[left[0] + 2 :])
            for result, share in after(merged).items():
                outcomes[result] += weight * share
        return dict(outcomes)

    return after(tuple(word))


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("word", ["schlafen", "children"])
def test_samples_have_the_distribution_of_algorithm_1(tokenizer, word, probability):
    """Pearson's statistic lies within five standard deviations of its mean."""
    expected = exact_distribution(tokenizer, "Ġ" + word, probability)
    assert sum(expected.values()) == pytest.approx(1.0)
    assert len(expected) > 5
    dropout, draws = BpeDropout(tokenizer, probability), 20_000
    ids = tokenizer(word).input_ids
    generator = Random(1)
    samples = Counter(tuple(dropout.sample(ids, generator)[:-1]) for _ in range(draws))
    counts = {tuple(tokenizer.convert_ids_to_tokens(sample)): count for sample, count in samples.items()}
    assert counts.keys() <= expected.keys()
    likely = {split for split, share in expected.items() if share * draws >= 5}
    cells = [(counts.get(split, 0), expected[split] * draws) for split in likely]
    cells.append((draws - sum(count for count, _ in cells), draws - sum(mean for _, mean in cells)))
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells if mean >= 5)
    assert statistic < len(cells) + 5 * np.sqrt(2 * len(cells))


@pytest.fixture(params=[False, True], ids=["plain", "with a tag"])
def either(request, tokenizer: VaswaniTokenizer, tmp_path: Path) -> VaswaniTokenizer:
    if request.param:
        tokenizer.save_pretrained(tmp_path)
        tokenizer = VaswaniTokenizer.from_pretrained(tmp_path)
        tokenizer.add_tokens(["<2de>"], special_tokens=True)
    return tokenizer


def test_without_dropout_it_is_the_encoding_of_the_tokenizer(either):
    texts = [
        *TEXTS,
        "<2de> The man",
        "<2de>The <2de>man",
        *(text for pair in phrasebook("train")[::7] for text in pair),
    ]
    dropout = BpeDropout(either, 0.0)
    for ids in either(texts).input_ids:
        assert dropout.sample(ids, Random(1)) == ids


def test_with_all_merges_dropped_bytes_remain(tokenizer):
    dropout = BpeDropout(tokenizer, 1.0)
    for text in TEXTS:
        ids = dropout.sample(tokenizer(text).input_ids, Random(1))
        assert tokenizer.decode(ids, skip_special_tokens=True) == tokenizer.decode(tokenizer(text).input_ids[:-1])
        normal = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
        assert len(ids) == len(normal.encode()) + 1


def test_samples_decode_to_the_same_text(either):
    dropout, generator = BpeDropout(either, 0.3), Random(1)
    sentences = phrasebook("validation")[0]
    for text in [*TEXTS, "<2de>The <2de>man", *sentences]:
        ids = either(text).input_ids
        samples = {tuple(dropout.sample(ids, generator)) for _ in range(20)}
        assert {either.decode(sample) for sample in samples} == {either.decode(ids)}
        tag = either.get_vocab().get("<2de>")
        assert {sample.count(tag) for sample in samples} == {ids.count(tag)}
        assert len(samples) > 15 or text not in sentences


# What training reads.


def read_epochs(trainer: RecordingTrainer, epochs: int = 3) -> list[list[dict[str, torch.Tensor]]]:
    loader = trainer.get_train_dataloader()
    found = []
    for epoch in range(epochs):
        trainer.batch_sampler.set_epoch(epoch)
        found.append([dict(batch) for batch in loader])
    loader.base_dataloader._iterator = None  # ends persistent workers; the garbage collector would wait in vain
    return found


def pair_texts(batches: list[dict[str, torch.Tensor]], tokenizer: VaswaniTokenizer) -> list[tuple[str, str]]:
    """The text of each pair of all batches."""
    texts = []
    for batch in batches:
        labels = batch["labels"].masked_fill(batch["labels"].eq(-100), 0)
        sides = (tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (batch["input_ids"], labels))
        texts += zip(*sides, strict=True)
    return sorted(texts)


def test_epochs_differ_and_stay_within_the_budget(model, tokenizer, pairs, tmp_path):
    trainer = dropout_trainer(model, tokenizer, pairs, tmp_path, source_tokens=300, target_tokens=250, bpe_dropout=0.3)
    epochs = read_epochs(trainer, 5)
    corpus = sorted(zip(*map(tokenizer.batch_decode, (pairs["input_ids"][:], pairs["labels"][:])), strict=True))
    corpus = sorted(tuple(text.removesuffix("</s>") for text in pair) for pair in corpus)
    tokens = []
    for batches in epochs:
        assert pair_texts(batches, tokenizer) == corpus
        assert all(batch["input_ids"].numel() <= 300 and batch["labels"].numel() <= 250 for batch in batches)
        assert all(torch.equal(batch["attention_mask"], batch["input_ids"].ne(0).long()) for batch in batches)
        tokens.append(sum(int(batch["labels"].ne(-100).sum()) for batch in batches))
    assert len(set(tokens)) == 5
    assert min(tokens) > 1.1 * sum(pairs["target_length"])


def test_an_epoch_is_the_same_in_any_number_of_workers(model, tokenizer, pairs, tmp_path):
    alone = read_epochs(dropout_trainer(model, tokenizer, pairs, tmp_path))
    settings = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    shared = read_epochs(dropout_trainer(model, tokenizer, pairs, tmp_path, **settings))
    for batches, others in zip(alone, shared, strict=True):
        for batch, other in zip(batches, others, strict=True):
            assert batch.keys() == other.keys()
            assert all(torch.equal(batch[name], other[name]) for name in batch)


def test_a_pair_that_would_exceed_its_bound_is_drawn_again(tokenizer, pairs):
    lengths = pairs["source_length"][:], pairs["target_length"][:]
    free = ResampledPairs(pairs, lengths, (1000, 1000), BpeDropout(tokenizer, 0.5), 1)
    tight = ResampledPairs(pairs, lengths, (20, 12), BpeDropout(tokenizer, 0.5), 1)
    longest = []
    for side, limit, before, bounds in zip(("input_ids", "labels"), (20, 12), lengths, tight.bounds, strict=True):
        assert bounds.tolist() == np.maximum(np.minimum(limit, free.bounds[len(longest)]), before).tolist()
        longest.append(max(len(free[0, row][side]) for row in range(len(pairs))))
        for row in range(len(pairs)):
            assert len(tight[0, row][side]) <= bounds[row]
    assert longest[0] > 20 < max(lengths[0])
    lengths = [len(free.dropout.sample(ids, Random(9))) for ids in pairs["input_ids"]]
    assert np.mean(lengths > free.bounds[0]) < 0.05


# Training.


@pytest.mark.system
@pytest.mark.parametrize("settings", [{}, {"virtual_ranks": 2}, {"gradient_accumulation_steps": 2}])
def test_resuming_ends_in_the_same_weights(model, tokenizer, pairs, tmp_path, settings):
    settings = {"num_train_epochs": 2, "max_steps": -1, "save_strategy": "steps", "save_steps": 1, **settings}
    whole = dropout_trainer(model, tokenizer, pairs, tmp_path, **settings)
    whole.train()
    steps = whole.state.global_step
    assert steps >= 8
    other = VaswaniForConditionalGeneration(model.config)
    resumed = dropout_trainer(other, tokenizer, pairs, tmp_path, dataloader_num_workers=1, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{steps * 3 // 4}"))
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name]), name
    assert whole.totals.target_tokens == resumed.totals.target_tokens


@pytest.mark.system
def test_sentences_stay_within_a_learned_table(tokenizer, pairs, tmp_path):
    longest = max(max(pairs[side]) for side in ("source_length", "target_length"))
    widths = {"d_model": 16, "d_ff": 20, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    table = {"position_encoding": "learned", "max_position_embeddings": longest}
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=len(tokenizer), **widths, **table))
    trainer = dropout_trainer(model, tokenizer, pairs, tmp_path, bpe_dropout=0.5, max_steps=30)
    trainer.train()
    assert max(batch[side].shape[1] for batch in trainer.batches[0] for side in ("input_ids", "labels")) == longest
    trainer.batch_sampler.set_epoch(0)
    texts = {tokenizer.decode(pairs[row]["input_ids"]) for row in [*trainer.batch_sampler][1]}
    second = trainer.batches[0][1]["input_ids"]
    assert {tokenizer.decode(row[row.ne(0)]) for row in second} == texts


def test_labels_of_parses_are_not_sampled(pairs):
    corpus = [text for pair in phrasebook("validation") for text in pair]
    tokenizer = VaswaniParsingTokenizer.train_with_labels(corpus, ["(NP", ")NP"], 450)
    labels = tokenizer(text_target="(NP )NP").input_ids
    rows = Dataset.from_dict({"input_ids": tokenizer(["the man sleeps"]).input_ids, "labels": [labels]})
    resampled = ResampledPairs(rows, ([len(rows[0]["input_ids"])], [3]), (100, 100), BpeDropout(tokenizer, 1.0), 1)
    assert resampled[0, 0]["labels"] == labels
    assert len(resampled[0, 0]["input_ids"]) == len(" the man sleeps") + 1


# Refusals.
