"""What `recipes/benchmarks/decode.py` compares is the same: the weights, the sentences, the ends."""

import pytest
import torch
from conftest import recipe_module

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration


@pytest.fixture(scope="module")
def decode():
    """The benchmark as a module."""
    pytest.importorskip("ctranslate2")
    return recipe_module("benchmarks/decode.py")


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["sinusoidal", "sinusoidal_halves"])
def test_the_peer_is_the_same_model(decode, encoding):
    config = VaswaniConfig(
        vocab_size=50, d_model=16, d_ff=32, num_heads=2, encoder_layers=2, decoder_layers=1, position_encoding=encoding
    )
    model = VaswaniForConditionalGeneration(config).eval()
    source, target = torch.tensor([[7, 8, 9, 1], [4, 1, 0, 0]]), torch.tensor([[0, 5, 6], [0, 9, 10]])
    marian = decode.as_marian(model)
    expected = model(source, decoder_input_ids=target).logits
    found = marian(source, attention_mask=source.ne(0).long(), decoder_input_ids=target).logits
    assert torch.allclose(found[:, :, 1:], expected[:, :, 1:], atol=1e-5)  # the padding's row is zero in the peer


def test_every_sentence_is_in_one_batch_and_sorted_ones_are_of_similar_length(decode):
    sources = [[1] * length for length in (5, 2, 9, 2, 7, 1, 3)]
    for is_sorted in (False, True):
        batches = decode.batches(sources, 3, is_sorted)
        assert sorted(index for batch in batches for index in batch) == list(range(7))
        assert max(map(len, batches)) == 3
    assert [[len(sources[index]) for index in batch] for batch in batches] == [[9, 7, 5], [3, 2, 2], [1]]
    assert decode.batches(sources, 3, False)[0] == [0, 1, 2]


def test_output_ends_before_its_end(decode):
    assert decode.until_end([5, 6, 1, 0], 1) == [5, 6]
    assert decode.until_end([5, 6], 1) == [5, 6]


def test_lines_are_taken_from_all_over_the_text(decode):
    assert decode.spread([str(number) for number in range(100)], 4) == ["0", "25", "50", "75"]
    assert decode.spread(["a", "b"], 4) == ["a", "b"]
