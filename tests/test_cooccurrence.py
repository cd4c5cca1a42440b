"""Embeddings from co-occurrence, beside a decomposition of a matrix that is filled in by loops."""

import math
import random

import pytest
import torch
from datasets import Dataset

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.training import cooccurrence
from vaswani_transformer.training.cooccurrence import cooccurrence_embeddings, set_embeddings


VOCABULARY, D_MODEL = 40, 6
UNUSED = [0, 1, 20, 39]


@pytest.fixture
def pairs() -> Dataset:
    """Word w of the source, from 2 to 19, is word w + 19 in the target."""
    draw = random.Random(3)
    sources = [[draw.randrange(2, 20) for _ in range(draw.randrange(1, 5))] for _ in range(200)]
    return Dataset.from_list([{"input_ids": each, "labels": [word + 19 for word in each]} for each in sources])


def matrix_by_loops(pairs: Dataset) -> torch.Tensor:
    present = [set(pair["input_ids"]) | set(pair["labels"]) for pair in pairs]
    frequency = {token: sum(token in pair for pair in present) for token in range(VOCABULARY)}
    matrix = torch.zeros(VOCABULARY, len(present))
    for column, pair in enumerate(present):
        length = sum(1 / math.sqrt(frequency[token]) for token in pair)
        for token in pair:
            matrix[token, column] = 1 / math.sqrt(frequency[token] * length)
    return matrix


def test_similarities_are_those_of_the_singular_vectors(pairs):
    vectors, values, _ = torch.linalg.svd(matrix_by_loops(pairs), full_matrices=False)
    expected = vectors[:, 1 : D_MODEL + 1] * values[1 : D_MODEL + 1].sqrt()
    found = cooccurrence_embeddings(pairs, VOCABULARY, D_MODEL, seed=1)
    used = [token for token in range(VOCABULARY) if token not in UNUSED]
    expected = torch.nn.functional.normalize(expected[used])
    torch.testing.assert_close(found[used] @ found[used].T, expected @ expected.T, atol=1e-4, rtol=0.0)
    assert found[UNUSED].count_nonzero() == 0
    other = cooccurrence_embeddings(pairs, VOCABULARY, D_MODEL, seed=2)
    assert not torch.allclose(found, other, atol=0.1)
    assert torch.equal(found, cooccurrence_embeddings(pairs, VOCABULARY, D_MODEL, seed=1))


def test_a_model_wider_than_the_vocabulary_and_a_part_of_many_pairs(pairs, monkeypatch):
    found = cooccurrence_embeddings(pairs, VOCABULARY, 64, seed=1)
    norms = found.norm(dim=1)
    torch.testing.assert_close(norms, norms.new_tensor([float(token not in UNUSED) for token in range(VOCABULARY)]))
    monkeypatch.setattr(cooccurrence, "_MOST_PAIRS", 50)
    part = cooccurrence_embeddings(pairs, VOCABULARY, 64, seed=1)
    assert torch.equal(part, cooccurrence_embeddings(pairs.select(range(0, 200, 4)), VOCABULARY, 64, seed=1))


@pytest.mark.parametrize(("tied", "targets"), [(True, None), (False, None), (True, 25)])
def test_embeddings_turn_and_the_rest_stays(tied, targets):
    sizes = {"d_model": 512, "d_ff": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    sizes |= {"target_vocab_size": targets}
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=VOCABULARY, tie_word_embeddings=tied, **sizes))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    directions = torch.nn.functional.normalize(torch.randn(VOCABULARY, model.config.d_model))
    directions[UNUSED] = 0
    set_embeddings(model, directions)
    embeddings = [stack.embed_tokens.weight for stack in (model.get_encoder(), model.get_decoder())]
    for weights in embeddings:
        similarity = (torch.nn.functional.normalize(weights) * directions[: len(weights)]).sum(dim=1)
        for token, found in enumerate(similarity.tolist()):
            assert found == (0.0 if token in UNUSED else pytest.approx(0.95, abs=0.03))
    after = model.state_dict()
    changed = {name for name, each in after.items() if not torch.equal(each, before[name])}
    assert all(
        "embed_tokens" in name or (tied and name in ("lm_head.weight", "model.shared.weight")) for name in changed
    )
    for name in changed:
        unused = [token for token in UNUSED if token < len(after[name])]
        assert torch.equal(after[name][unused], before[name][unused])
        norms = [float(each[name].norm(dim=1).mean()) for each in (before, after)]
        assert norms[1] == pytest.approx(norms[0], rel=0.02)
