"""Section 6.1: a limit of the length for each sentence."""

import math

import pytest
import torch
from models import EOS, SOURCES, as_batch
from transformers import GenerationConfig
from transformers.generation import LogitsProcessor, LogitsProcessorList

from vaswani_transformer import VaswaniForConditionalGeneration


def forbid_eos(model: VaswaniForConditionalGeneration) -> LogitsProcessorList:
    class Forbid(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores.index_fill(1, torch.tensor([EOS]), -math.inf)

    return LogitsProcessorList([Forbid()])


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("as_object", [False, True])
def test_every_sentence_ends_so_many_tokens_beyond_its_own_source(model, beams, as_object):
    sources = [[7, 8, 9, 4, 5, 1], [7, 1], [3, 4, 1]]
    batch = torch.tensor([source + [0] * (6 - len(source)) for source in sources])
    model.generation_config.max_new_tokens_over_source = 2
    model.generation_config.num_beams = beams
    options = {"logits_processor": forbid_eos(model)}
    if as_object:
        options["generation_config"] = GenerationConfig(num_beams=beams)  # what it leaves open is the model's
    output = model.generate(batch, **options)
    for row, source in zip(output, sources, strict=True):
        assert int(row[1:].ne(0).sum()) == len(source) + 2
        alone = model.generate(torch.tensor([source]), **options)[0]
        assert alone.tolist() == row[: len(alone)].tolist()


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 1}, {"num_beams": 4, "num_return_sequences": 3}, {"num_beams": 1, "do_sample": True, "top_k": 1}],
    ids=["greedy", "beams", "transformers' loop"],
)
def test_an_end_is_forced_at_the_limit_of_each_sentence(talkative_model, options):
    options |= {"forced_eos_token_id": EOS}
    batch = talkative_model.generate(as_batch(SOURCES), max_new_tokens_over_source=2, **options)
    for rows, source in zip(batch.unflatten(0, (len(SOURCES), -1)), SOURCES, strict=True):
        alone = talkative_model.generate(torch.tensor([source]), max_new_tokens=len(source) + 2, **options)
        assert rows[:, : alone.shape[1]].equal(alone)
        assert not rows[:, alone.shape[1] :].any()
        assert rows.eq(EOS).any(1).all()


def test_by_default_a_translation_may_have_50_tokens_more_than_its_source(model):
    output = model.generate(torch.tensor([[7, 8, 9, 4, 5, 1]]), logits_processor=forbid_eos(model))
    assert output.shape[1] == 1 + 6 + 50


def lengths_of(output: torch.Tensor) -> list[int]:
    return output[:, 1:].ne(0).sum(-1).tolist()


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("stored", [{"max_length": 9}, {"max_new_tokens": 4}])
def test_the_nearest_limit_wins(model, stored, beams, caplog):
    """A keyword before the given configuration, that before the model's; in one place, a fixed limit before others."""
    batch, options = as_batch([[7, 8, 9, 1], [7, 1]]), {"logits_processor": forbid_eos(model)}
    model.generation_config.num_beams = beams
    model.generation_config.update(**stored)
    fixed = stored.get("max_new_tokens", 8)
    assert lengths_of(model.generate(batch, **options)) == [fixed, fixed]
    assert lengths_of(model.generate(batch, max_new_tokens_over_source=2, **options)) == [6, 4]
    over = GenerationConfig(num_beams=beams, max_new_tokens_over_source=2)
    assert lengths_of(model.generate(batch, over, **options)) == [6, 4]
    assert lengths_of(model.generate(batch, GenerationConfig(num_beams=beams), **options)) == [fixed, fixed]
    assert lengths_of(model.generate(batch, over, max_new_tokens=3, **options)) == [3, 3]
    both = GenerationConfig(num_beams=beams, max_new_tokens_over_source=2, max_new_tokens=3)
    assert lengths_of(model.generate(batch, both, **options)) == [3, 3]
    assert lengths_of(model.generate(batch, both, max_new_tokens_over_source=1, **options)) == [5, 3]
    assert lengths_of(model.generate(batch, max_new_tokens_over_source=1, max_new_tokens=2, **options)) == [2, 2]
    assert lengths_of(model.generate(batch, max_length=3, **options)) == [2, 2]


@pytest.mark.parametrize("value", [-1, 2.5])
def test_limits_that_cannot_be_are_refused(model, value):
    with pytest.raises(ValueError, match="max_new_tokens_over_source: must be an integer of at least 0"):
        model.generate(torch.tensor([[5, 1]]), max_new_tokens_over_source=value)


@pytest.mark.parametrize("prefix", [[0, 9, 10], [9, 10]], ids=["with start token", "without"])
def test_prefix_does_not_count_as_generated(model, prefix):
    options = {"max_new_tokens_over_source": 1, "logits_processor": forbid_eos(model)}
    output = model.generate(torch.tensor([[7, 8, 1]]), decoder_input_ids=torch.tensor([prefix]), **options)
    assert output[0, :3].tolist() == [0, 9, 10]
    assert output.shape[1] == 3 + 4


def test_learned_positions_end_generation_at_the_end_of_the_table(config):
    config.position_encoding, config.max_position_embeddings = "learned", 8
    model = VaswaniForConditionalGeneration(config).eval()
    for options in ({}, {"max_new_tokens": 9}, {"max_length": 20}, {"max_length": 10, "num_beams": 1}):
        output = model.generate(torch.tensor([[7, 8, 9, 1]]), logits_processor=forbid_eos(model), **options)
        assert output.shape[1] == 8 + 1  # the last token is never fed
    with pytest.raises(ValueError, match="a sequence of 9 tokens has more than max_position_embeddings = 8"):
        model.generate(torch.tensor([[7, 1]]), decoder_input_ids=torch.tensor([[0, *range(3, 11)]]))
