"""Attention weights of a sentence: the model's own in a padded batch, words merged as by loops."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from foreign_models import fsmt_tokenizer, marian_tokenizer, untrained

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.visualization.attention import merge_words, read_attention


SOURCE, TARGET = "The old man reads a book.", "Der alte Mann liest ein Buch."
KINDS = ("encoder", "decoder", "cross")


@pytest.fixture
def model(tokenizer):
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 3}
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=len(tokenizer), **sizes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    model.generation_config.max_new_tokens_over_source = 5
    return model


def eager_reference(model, tokenizer, source: str, target: str) -> dict[str, np.ndarray]:
    """The second sentence of a batch that is padded to the first one's length."""
    model.set_attn_implementation("eager")
    batch = tokenizer([f"{source} {source}", source], padding=True, return_tensors="pt")
    labels = tokenizer(text_target=[f"{target} {target}", target], padding=True, return_tensors="pt").input_ids
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    rows, columns = len(tokenizer(text_target=target).input_ids), len(tokenizer(source).input_ids)
    with torch.no_grad():
        outputs = model(**batch, decoder_input_ids=shifted, output_attentions=True)
    encoder, decoder, cross = (
        np.stack([layer[1].numpy() for layer in layers])
        for layers in (outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions)
    )
    assert cross.shape[-1] > columns
    return {
        "encoder": encoder[..., :columns, :columns],
        "decoder": decoder[..., :rows, :rows],
        "cross": cross[..., :rows, :columns],
    }


def test_weights_are_those_of_the_model_in_a_padded_batch(model, tokenizer):
    found = read_attention(model, tokenizer, SOURCE, TARGET)
    for kind, expected in eager_reference(model, tokenizer, SOURCE, TARGET).items():
        rows, columns, weights = found.select(kind)
        assert weights.shape == (3 - (kind == "encoder"), 4, len(rows), len(columns))
        np.testing.assert_allclose(weights, expected, atol=1e-5)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert not np.triu(found.decoder, 1).any()


def test_by_default_the_target_is_the_models_own(model, tokenizer):
    ids = model.generate(**tokenizer(SOURCE, return_tensors="pt"))[0, 1:].tolist()
    own, given = read_attention(model, tokenizer, SOURCE), read_attention(model, tokenizer, SOURCE, ids)
    assert own.target == given.target
    np.testing.assert_array_equal(own.cross, given.cross)


def test_a_translation_that_reaches_its_limit_has_no_end(model, tokenizer):
    model.generation_config.update(max_new_tokens=6, num_beams=1, suppress_tokens=[tokenizer.eos_token_id])
    own = read_attention(model, tokenizer, SOURCE)
    assert len(own.target) == 6
    assert "</s>" not in own.target
    merged = merge_words(own)
    assert merged.decoder.shape[-2:] == (len(merged.target), len(merged.inputs))


def test_attention_is_read_without_dropout_and_the_model_stays_as_fast(model, tokenizer):
    model.train()
    first, second = (read_attention(model, tokenizer, SOURCE) for _ in range(2))
    np.testing.assert_array_equal(first.cross, second.cross)
    assert not model.training
    assert model.config._attn_implementation == model.model.encoder.config._attn_implementation == "sdpa"


def test_merged_words_by_loops(model, tokenizer):
    weights = read_attention(model, tokenizer, SOURCE, TARGET)
    assert weights.inputs == ["<s>", *weights.target[:-1]]
    merged = merge_words(weights)
    assert merged.source == ["The", "old", "man", "reads", "a", "book", ".", "</s>"]
    assert merged.inputs == ["<s>", "Der", "alte", "Mann", "liest", "ein", "Buch", "."]

    def groups(continues):
        bounds = [*(index for index, is_inside in enumerate(continues) if not is_inside), len(continues)]
        return [range(*each) for each in pairwise(bounds)]

    source, target = groups(weights.source_continues), groups(weights.target_continues)
    inputs = groups([False, *weights.target_continues[:-1]])
    for kind, rows, columns in (("encoder", source, source), ("decoder", target, inputs), ("cross", target, source)):
        before, after = weights.select(kind)[2], merged.select(kind)[2]
        assert after.shape[-2:] == (len(rows), len(columns))
        for layer, head, row, column in np.ndindex(after.shape):
            parts = [sum(before[layer, head, r, c] for c in columns[column]) for r in rows[row]]
            assert after[layer, head, row, column] == pytest.approx(sum(parts) / len(parts), abs=1e-5)
        np.testing.assert_allclose(after.sum(-1), 1, atol=1e-5)


def test_models_of_other_toolkits(tmp_path):
    marian = marian_tokenizer(tmp_path / "marian", separate_vocabs=True)
    ids = {"pad_token_id": marian.pad_token_id, "decoder_start_token_id": marian.pad_token_id}
    sizes = {"vocab_size": marian.vocab_size, "decoder_vocab_size": len(marian.decoder), **ids}
    separate = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "eos_token_id": 0}
    merged = merge_words(read_attention(untrained("marian", **sizes, **separate), marian, SOURCE, TARGET))
    assert merged.target == ["Der", "alte", "Mann", "liest", "ein", "Buch", ".", "</s>"]

    fsmt = fsmt_tokenizer(tmp_path / "fsmt", separate_vocabs=True)
    model = untrained("fsmt", src_vocab_size=fsmt.src_vocab_size, tgt_vocab_size=fsmt.tgt_vocab_size)
    model.generation_config.update(max_length=9, max_new_tokens=None)
    own = merge_words(read_attention(model, fsmt, SOURCE))
    with pytest.raises(ValueError, match="target: the model's tokenizer has two vocabularies"):
        read_attention(model, fsmt, SOURCE, TARGET)
    for weights in (merged, own):
        assert weights.source == ["The", "old", "man", "reads", "a", "book", ".", "</s>"]
        assert not np.triu(weights.decoder, 2).any()
        for kind in KINDS:
            np.testing.assert_allclose(weights.select(kind)[2].sum(-1), 1, atol=1e-5)
