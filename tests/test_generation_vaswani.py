"""Section 6.1: the length penalty, the limit of each sentence, and the options of `generate`."""

import copy
import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from models import EOS, SOURCES, as_batch, lively
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, MarianMTModel, TextStreamer
from transformers.generation import (
    EosTokenCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.convert.marian import to_marian
from vaswani_transformer.model import step_decoder_vaswani
from vaswani_transformer.model.acceleration_vaswani import best_tokens
from vaswani_transformer.model.modeling_vaswani import VaswaniDecoderLayer, eager_attention_forward
from vaswani_transformer.model.step_decoder_vaswani import IncrementalDecoder


def penalty(length: int, alpha: float, penalty_type: str) -> float:
    return ((5 + length) / 6) ** alpha if penalty_type == "gnmt" else length**alpha


@torch.no_grad()
def every_ending(model: VaswaniForConditionalGeneration, source: torch.Tensor, longest: int) -> dict:
    """log P of every sequence of at most `longest` tokens that ends in its only EOS."""
    others = [token for token in range(model.config.vocab_size) if token != EOS]
    inner = torch.tensor(list(itertools.product(others, repeat=longest - 1)))  # [sequences, longest - 1]
    ids = F.pad(inner, (1, 0))
    logits = model(source.expand(len(ids), -1), decoder_input_ids=ids).logits.double().log_softmax(-1)
    before = F.pad(logits[:, :-1].gather(2, inner.unsqueeze(-1)).squeeze(-1).cumsum(-1), (1, 0))
    totals = (before + logits[:, :, EOS]).tolist()  # [sequences, longest]
    return {
        (*tokens[:length], EOS): totals[number][length]
        for number, tokens in enumerate(inner.tolist())
        for length in range(longest)
    }


@pytest.mark.parametrize(
    ("vocabulary", "longest", "models"), [(3, 6, 20), (5, 4, 20), (5, 6, 2)], ids=["3^6", "5^4", "5^6"]
)
@pytest.mark.parametrize("penalty_type", ["gnmt", "transformers"])
def test_no_sequence_is_better_than_what_a_beam_of_full_width_finds(vocabulary, longest, models, penalty_type):
    source = torch.tensor([[2, 0, 1]])
    width = vocabulary * (vocabulary - 1) ** (longest - 1) // 2  # all continuations are then candidates
    for seed in range(models):
        model = lively(vocabulary, seed, num_heads=1)
        endings = every_ending(model, source, longest)
        alpha = (0.0, 0.6, 1.0, 2.0, -0.5)[seed % 5]
        scores = {tokens: score / penalty(len(tokens), alpha, penalty_type) for tokens, score in endings.items()}
        ranked = sorted(scores, key=scores.get, reverse=True)
        settings = {"max_new_tokens": longest, "length_penalty": alpha, "length_penalty_type": penalty_type}
        settings |= {"return_dict_in_generate": True, "output_scores": bool(seed % 2)}
        best = model.generate(source, num_beams=width, num_return_sequences=3, **settings)
        for place in range(3):
            found = tuple(best.sequences[place, 1:].tolist())
            found = found[: found.index(EOS) + 1]
            assert scores[found] == pytest.approx(scores[ranked[place]], abs=1e-4)
            if scores[ranked[place]] - scores[ranked[place + 1]] > 1e-3:
                assert found == ranked[place]
            if seed % 2:
                assert float(best.sequences_scores[place]) == pytest.approx(scores[found], abs=1e-4)
        narrow = model.generate(source, num_beams=2, **settings)
        if seed % 2 and EOS in narrow.sequences[0].tolist():
            assert float(narrow.sequences_scores[0]) <= scores[ranked[0]] + 1e-4


@torch.no_grad()
def beam_search_by_definition(
    model: VaswaniForConditionalGeneration, source: list[int], num_beams: int, alpha: float, rule: object, kind: str
) -> list[tuple[float, tuple[int, ...]]]:
    """Finished hypotheses of one sentence, best first, or live ones; each with its score."""
    limit = len(source) + model.generation_config.max_new_tokens_over_source
    live, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        ids = torch.tensor([[0, *tokens] for _, tokens in live])
        logits = model(torch.tensor([source]).expand(len(ids), -1), decoder_input_ids=ids).logits[:, -1]
        steps = logits.double().log_softmax(-1).tolist()
        candidates = sorted(
            ((score + step, (*tokens, token)) for (score, tokens), row in zip(live, steps, strict=True)
             for token, step in enumerate(row)), reverse=True
        )[: 2 * num_beams]  # fmt: skip
        counted = candidates if rule == "never" else candidates[:num_beams]
        finished += [(score / penalty(length, alpha, kind), tokens) for score, tokens in counted if tokens[-1] == EOS]
        finished = sorted(finished, reverse=True)[:num_beams]
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][:num_beams]
        full = len(finished) == num_beams
        if rule is True and full:
            break
        if rule is False and full and finished[-1][0] >= live[0][0] / penalty(length, alpha, kind):
            break
        if rule == "never" and finished:
            ends = (length + 1, limit)
            if finished[0][0] >= max(live[0][0] / penalty(end, alpha, kind) for end in ends):
                break
    return finished or [(score / penalty(length, alpha, kind), tokens) for score, tokens in live]


@pytest.mark.parametrize("num_beams", [2, 3, 4, 7, 21])
@pytest.mark.parametrize(("alpha", "kind"), [(0.6, "gnmt"), (0.0, "gnmt"), (1.0, "transformers"), (-1.0, "gnmt")])
@pytest.mark.parametrize("rule", ["never", False, True])
def test_search_equals_the_definition(talkative_model, num_beams, alpha, kind, rule):
    output = talkative_model.generate(
        as_batch(SOURCES),
        num_beams=num_beams,
        length_penalty=alpha,
        length_penalty_type=kind,
        early_stopping=rule,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for source, sequence, score in zip(SOURCES, output.sequences, output.sequences_scores, strict=True):
        expected_score, expected = beam_search_by_definition(talkative_model, source, num_beams, alpha, rule, kind)[0]
        assert sequence.tolist() == [0, *expected] + [0] * (len(sequence) - 1 - len(expected))
        assert float(score) == pytest.approx(expected_score, abs=1e-4)


def test_sentences_of_the_talkative_model_end_at_many_lengths(talkative_model):
    """Else the tests above and below would show little."""
    output = talkative_model.generate(as_batch(SOURCES))
    assert len({row.index(EOS) for row in output.tolist()}) > 4


# As OPUS-MT models do; here tokens that would otherwise be chosen. EOS is forced at the end of the longest sentence.
FORBIDDEN = {"bad_words_ids": [[5], [7, 8]], "renormalize_logits": True}
FORCED = {"forced_eos_token_id": EOS, "max_new_tokens": 30}


@pytest.mark.parametrize("processors", [{}, FORBIDDEN | FORCED], ids=["no processors", "processors"])
@pytest.mark.parametrize("num_beams", [2, 4, 9])
def test_a_sentence_does_not_depend_on_its_batch(talkative_model, num_beams, processors):
    options = {"num_beams": num_beams, "num_return_sequences": 2, "return_dict_in_generate": True, **processors}

    def search(sources: list[list[int]], **more: object) -> list[tuple]:
        output = talkative_model.generate(as_batch(sources), **options, **more)
        rows = output.sequences.unflatten(0, (len(sources), 2)).tolist()
        return [tuple(tuple(row + [0] * (40 - len(row))) for row in rows_of_one) for rows_of_one in rows]

    together = search(SOURCES)
    assert search(SOURCES[::-1])[::-1] == together
    assert search(SOURCES[:3]) + search(SOURCES[3:]) == together
    assert [search([source])[0] for source in SOURCES] == together
    # With the scores of all steps kept, and with a whole forward pass a step, no sentence leaves.
    assert search(SOURCES, output_scores=True) == together
    assert search(SOURCES, use_cache=False) == together


@pytest.mark.parametrize("processors", [{}, FORBIDDEN], ids=["no processors", "processors"])
def test_finished_sentences_leave_and_the_source_is_there_once(talkative_model, monkeypatch, processors):
    rows, trees = [], []
    step = IncrementalDecoder.step

    def counting(decoder, tokens, parents):
        rows.append(len(tokens))
        trees.append(decoder.layers[0].source_attention.keys.shape[0])
        return step(decoder, tokens, parents)

    monkeypatch.setattr(IncrementalDecoder, "step", counting)
    talkative_model.generate(as_batch(SOURCES), **processors)
    assert rows[0] == len(SOURCES)
    assert rows == sorted(rows, reverse=True)
    assert len(set(rows)) > 3
    assert set(trees) == {len(SOURCES)}  # not times the beams


@pytest.mark.parametrize("alpha", [float("nan"), float("inf"), 1e300, -101.0])
def test_a_penalty_that_overflows_is_refused(model, alpha):
    with pytest.raises(ValueError, match="length_penalty: must be a number of at most 100"):
        model.generate(torch.tensor([[5, 1]]), length_penalty=alpha)


@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences", "max_new_tokens", "max_length"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "4", math.nan])
def test_counts_that_cannot_be_are_refused(model, name, value):
    batch, config = torch.tensor([[5, 1]]), GenerationConfig(num_beams=2)
    setattr(config, name, value)
    for settings in ({name: value}, {"num_beams": 1, name: value}):
        with pytest.raises(ValueError, match=f"^{name}: must be an integer of at least 1, is {value!r}$"):
            model.generate(batch, **settings)
    with pytest.raises(ValueError, match=f"^{name}: must be an integer"):
        model.generate(batch, generation_config=config)


@pytest.mark.parametrize("settings", [{"num_beams": 2}, {"num_beams": 1}, {"num_beams": 1, "do_sample": True}])
def test_logits_that_are_not_numbers_are_refused(model, settings):
    overflowing = copy.deepcopy(model)
    with torch.no_grad():
        overflowing.get_decoder().layers[0].feed_forward.fc2.weight.fill_(math.inf)
    with pytest.raises(ValueError, match="logits are not numbers"):
        overflowing.generate(torch.tensor([[5, 6, 1], [7, 1, 0]]), **settings)


def test_unknown_penalty_is_refused(model):
    with pytest.raises(ValueError, match='length_penalty_type: must be "gnmt" or "transformers"'):
        model.generate(torch.tensor([[5, 1]]), length_penalty_type="wu")


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


def test_limits_given_by_hand_win(model):
    batch, options = torch.tensor([[7, 8, 9, 4, 5, 1]]), {"logits_processor": forbid_eos(model)}
    assert model.generate(batch, max_new_tokens=3, **options).shape[1] == 1 + 3
    assert model.generate(batch, max_length=3, **options).shape[1] == 3
    assert model.generate(batch, max_new_tokens_over_source=1, **options).shape[1] == 1 + 6 + 1
    assert model.generate(batch, **options).shape[1] == 1 + 6 + 50


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


@pytest.mark.parametrize("value", [-1, 2.5, "5"])
def test_limits_that_cannot_be_are_refused(model, value):
    with pytest.raises(ValueError, match="max_new_tokens_over_source: must be an integer of at least 0"):
        model.generate(torch.tensor([[5, 1]]), max_new_tokens_over_source=value)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("as_object", [False, True])
def test_every_sentence_is_forced_to_end_at_its_own_limit(model, beams, as_object):
    sources = [[7, 8, 9, 4, 5, 1], [7, 1], [3, 4, 1], [1]]
    settings = {"num_beams": beams, "max_new_tokens_over_source": 2, "forced_eos_token_id": EOS}
    given = {"generation_config": GenerationConfig(**settings)} if as_object else settings
    options = {**given, "logits_processor": forbid_eos(model)}
    output = model.generate(as_batch(sources), **options)
    for row, source in zip(output.tolist(), sources, strict=True):
        assert row.index(EOS) == len(source) + 2
        assert not any(row[row.index(EOS) + 1 :])
        alone = model.generate(torch.tensor([source]), **options)[0].tolist()
        assert alone == row[: len(alone)]


def test_prefix_without_tokens_is_refused(model):
    for beams in (1, 4):
        with pytest.raises(ValueError, match="decoder_input_ids: has no tokens; leave it out, or begin with the start"):
            model.generate(
                torch.tensor([[5, 1]]), decoder_input_ids=torch.empty(1, 0, dtype=torch.long), num_beams=beams
            )


def test_prefix_does_not_count_as_generated(model):
    batch = torch.tensor([[7, 8, 1]])
    output = model.generate(
        batch,
        decoder_input_ids=torch.tensor([[0, 9, 10]]),
        max_new_tokens_over_source=1,
        logits_processor=forbid_eos(model),
    )
    assert output[0, :3].tolist() == [0, 9, 10]
    assert output.shape[1] == 3 + 4


def test_start_token_that_is_put_before_a_prefix_does_not_count_either(model):
    options = {"max_new_tokens_over_source": 1, "logits_processor": forbid_eos(model)}
    output = model.generate(torch.tensor([[7, 8, 1]]), decoder_input_ids=torch.tensor([[9, 10]]), **options)
    assert output[0, :3].tolist() == [0, 9, 10]
    assert output.shape[1] == 3 + 4


def test_another_eos_ends_and_pads_a_sequence(model):
    batch = torch.tensor([[7, 8, 9, 4, 5, 1]])
    first = int(model.generate(batch, num_beams=1, max_new_tokens=4)[0, 1])
    output = model.generate(batch, eos_token_id=[1, first], max_new_tokens=4, num_beams=1)
    assert output.tolist() == [[0, first]]


def test_learned_positions_end_generation_at_the_end_of_the_table(config):
    config.position_encoding, config.max_position_embeddings = "learned", 8
    model = VaswaniForConditionalGeneration(config).eval()
    output = model.generate(torch.tensor([[7, 8, 9, 1]]), logits_processor=forbid_eos(model))
    assert output.shape[1] == 8 + 1  # the last token is never fed
    with pytest.raises(ValueError, match="decoder_input_ids: 9 tokens exceed the learned position table of 8"):
        model.generate(torch.tensor([[7, 1]]), decoder_input_ids=torch.tensor([[0, *range(3, 11)]]))


def test_source_may_be_given_as_embeddings_or_encoded(model):
    batch = torch.tensor([[7, 8, 9, 1]])
    expected = model.generate(batch)
    embeds = model.get_input_embeddings()(batch)
    assert torch.equal(model.generate(inputs_embeds=embeds), expected)
    encoded = model.get_encoder()(batch)
    assert torch.equal(model.generate(encoder_outputs=encoded), expected)
    with pytest.raises(ValueError, match="generate needs a source"):
        model.generate()


def test_cache_changes_nothing_but_the_speed(model):
    batch = torch.tensor([[7, 8, 9, 4, 5, 1], [7, 4, 1, 0, 0, 0]])
    assert torch.equal(model.generate(batch), model.generate(batch, use_cache=False))


def test_greedy_and_sampling_work(model):
    batch = torch.tensor([[7, 8, 9, 4, 5, 1]])
    greedy = model.generate(batch, num_beams=1, max_new_tokens=5)
    ids = [0]
    with torch.no_grad():
        while len(ids) < greedy.shape[1]:
            ids.append(int(model(batch, decoder_input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert greedy[0].tolist() == ids
    sampled = {
        tuple(model.generate(batch, num_beams=1, do_sample=True, max_new_tokens=5)[0].tolist()) for _ in range(5)
    }
    assert len(sampled) > 1
    several = model.generate(batch, num_return_sequences=3, max_new_tokens=5)
    assert several.shape[0] == 3
    assert len({tuple(row.tolist()) for row in several}) == 3


def test_generation_settings_survive_saving_and_loading(model, tmp_path):
    model.generation_config.max_new_tokens_over_source = 7
    model.generation_config.length_penalty_type = "transformers"
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config
    assert loaded.max_new_tokens_over_source == 7
    assert loaded.length_penalty_type == "transformers"
    assert (loaded.num_beams, loaded.length_penalty) == (4, 0.6)


def test_paper_decoding_is_the_default():
    config = VaswaniConfig(vocab_size=5, d_model=8, d_ff=8, num_heads=2, encoder_layers=1, decoder_layers=1)
    defaults = VaswaniForConditionalGeneration(config).generation_config
    assert (defaults.num_beams, defaults.length_penalty, defaults.length_penalty_type) == (4, 0.6, "gnmt")
    assert defaults.max_new_tokens_over_source == 50


@pytest.mark.parametrize("rule", [True, False])
def test_beam_search_with_transformers_rules_equals_marian(talkative_model, rule):
    marian: MarianMTModel = to_marian(talkative_model)
    options = {"num_beams": 4, "length_penalty": 0.3, "early_stopping": rule, "max_new_tokens": 40}
    # Marian never generates its padding token, which the model under test may.
    options |= {"bad_words_ids": [[0]], "return_dict_in_generate": True, "output_scores": True}
    batch = as_batch(SOURCES)
    ours = talkative_model.generate(batch, length_penalty_type="transformers", **options)
    theirs = marian.generate(batch, attention_mask=batch.ne(0).long(), **options)
    ends = theirs.sequences.eq(EOS).any(-1)  # what is cut off competes there, but not in the paper's search
    assert ends.sum() > 3
    assert torch.allclose(ours.sequences_scores[ends], theirs.sequences_scores[ends], atol=1e-4)
    for mine, other in zip(ours.sequences[ends].tolist(), theirs.sequences[ends].tolist(), strict=True):
        assert mine[: mine.index(EOS)] == other[: other.index(EOS)]


def test_scores_of_the_steps_add_up_to_the_score_of_the_sequence(talkative_model):
    output = talkative_model.generate(
        as_batch(SOURCES),
        num_return_sequences=3,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        length_penalty=0.0,
    )
    assert output.sequences.shape[0] == output.sequences_scores.shape[0] == 3 * len(SOURCES)
    steps = talkative_model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    assert torch.allclose(steps.sum(-1), output.sequences_scores, atol=1e-4)
    assert torch.allclose(output.logits[0].log_softmax(-1), output.scores[0], atol=1e-5)
    ordered = output.sequences_scores.unflatten(0, (-1, 3))
    assert torch.equal(ordered, ordered.sort(dim=-1, descending=True).values)


def test_attentions_and_hidden_states_are_those_of_the_returned_steps(talkative_model):
    talkative_model.set_attn_implementation("eager")
    batch = as_batch(SOURCES[:2])
    options = {"return_dict_in_generate": True, "output_attentions": True, "output_hidden_states": True}
    output = talkative_model.generate(batch, decoder_input_ids=torch.tensor([[0, 9], [0, 9]]), **options)
    assert torch.equal(output.sequences, talkative_model.generate(batch, decoder_input_ids=torch.tensor([[0, 9]] * 2)))
    assert output.cross_attentions[0][0].shape == (8, 2, 2, batch.shape[1])  # two tokens of prefix at once
    assert output.cross_attentions[3][1].shape == (8, 2, 1, batch.shape[1])
    assert output.decoder_attentions[3][1].shape == (8, 2, 1, 5)
    assert output.decoder_hidden_states[3][-1].shape == (8, 1, 16)
    assert output.encoder_attentions[0].shape == (2, 2, batch.shape[1], batch.shape[1])
    assert len(output.encoder_hidden_states) == 2


class Halve(LogitsProcessor):
    """Makes every token but one half as likely."""

    def __call__(self, input_ids, scores):
        likelier = scores[:, 11].clone()
        scores = scores - math.log(2)
        scores[:, 11] = likelier
        return scores


def test_logits_processors_see_sequences_and_change_scores(talkative_model):
    seen = []

    class Watch(Halve):
        def __call__(self, input_ids, scores):
            seen.append(tuple(input_ids.shape))
            return super().__call__(input_ids, scores)

    batch = as_batch(SOURCES)
    options = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 6}
    output = talkative_model.generate(batch, logits_processor=LogitsProcessorList([Watch()]), **options)
    assert seen[:3] == [(4 * len(SOURCES), 1), (4 * len(SOURCES), 2), (4 * len(SOURCES), 3)]
    slow = talkative_model.generate(batch, logits_processor=[Halve()], use_cache=False, **options)
    assert torch.equal(output.sequences, slow.sequences)
    plain = talkative_model.generate(batch, **options)
    assert not torch.allclose(plain.sequences_scores, output.sequences_scores)
    for row in talkative_model.generate(batch, bad_words_ids=[[11], [12]], min_new_tokens=3).tolist():
        assert not {11, 12} & set(row)
        assert EOS not in row[:4]


def test_allowed_tokens_may_depend_on_the_sentence(talkative_model):
    output = talkative_model.generate(
        as_batch(SOURCES[:3]),
        max_new_tokens=4,
        prefix_allowed_tokens_fn=lambda sentence, tokens: [10 + sentence, 20 + sentence],
    )
    for sentence, row in enumerate(output.tolist()):
        assert set(row[1:]) <= {10 + sentence, 20 + sentence}


def test_stopping_criteria_end_hypotheses(talkative_model):
    class AtThree(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((len(input_ids),), input_ids.shape[1] == 1 + 3)

    batch = as_batch(SOURCES)
    output = talkative_model.generate(batch, stopping_criteria=StoppingCriteriaList([AtThree()]))
    assert output.shape[1] == 1 + 3
    assert talkative_model.generate(batch, stopping_criteria=[MaxTimeCriteria(0.0)]).shape[1] == 1 + 1


def test_sampled_beams_are_likely_and_differ(talkative_model):
    batch = as_batch(SOURCES[:1]).expand(200, -1)
    options = {
        "do_sample": True,
        "max_new_tokens": 1,
        "min_new_tokens": 1,
        "num_beams": 2,
        "top_k": 0,
        "temperature": 9.0,
    }
    drawn = talkative_model.generate(batch, **options)[:, 1]
    with torch.no_grad():
        logits = talkative_model(batch[:1], decoder_input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, -1]
    likeliest = int(logits.index_fill(0, torch.tensor([EOS]), -math.inf).argmax())
    assert drawn.unique().numel() > 1
    assert int(drawn.mode().values) == likeliest


def test_streamers_are_refused_with_beams_and_work_without(talkative_model, tokenizer, capsys):
    batch = as_batch(SOURCES[:1])
    with pytest.raises(ValueError, match="streamer"):
        talkative_model.generate(batch, streamer=TextStreamer(tokenizer))
    talkative_model.generate(batch, streamer=TextStreamer(tokenizer), num_beams=1, max_new_tokens=3)
    assert capsys.readouterr().out


def test_prefix_is_kept_and_searched_on_from(talkative_model):
    batch, prefix = as_batch(SOURCES), torch.tensor([[0, 9, 10 + i] for i in range(len(SOURCES))])
    output = talkative_model.generate(batch, decoder_input_ids=prefix)
    assert torch.equal(output[:, :3], prefix)
    assert torch.equal(output, talkative_model.generate(batch, decoder_input_ids=prefix, use_cache=False))
    # A prefix padded on the left is the shorter prefix.
    padded, mask = torch.tensor([[0, 0, 9, 10]]), torch.tensor([[0, 1, 1, 1]])
    output = talkative_model.generate(batch[:1], decoder_input_ids=padded, decoder_attention_mask=mask)
    assert torch.equal(output[:, 1:], talkative_model.generate(batch[:1], decoder_input_ids=prefix[:1]))


def test_a_cache_from_elsewhere_is_refused(talkative_model):
    batch = as_batch(SOURCES[:1])
    cache = talkative_model(batch, decoder_input_ids=torch.tensor([[0, 5]]), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="past_key_values: beam search keeps its own"):
        talkative_model.generate(batch, past_key_values=cache, decoder_input_ids=torch.tensor([[0, 5, 6]]))


def test_trees_grow_as_they_are_needed(talkative_model, monkeypatch):
    talkative_model.generation_config.max_new_tokens_over_source = 400
    expected = talkative_model.generate(as_batch(SOURCES))
    monkeypatch.setattr(step_decoder_vaswani, "BLOCK", 2)
    sizes = []
    grow = IncrementalDecoder._grow
    monkeypatch.setattr(IncrementalDecoder, "_grow", lambda decoder: (grow(decoder), sizes.append(decoder.nodes)))
    assert torch.equal(talkative_model.generate(as_batch(SOURCES)), expected)
    assert len(sizes) > 1
    assert sizes[-1] < 4 * 400  # most sentences end long before their limit


def test_own_limits_and_ends_among_the_criteria_hold(talkative_model):
    batch = as_batch(SOURCES)
    assert talkative_model.generate(batch, stopping_criteria=[MaxLengthCriteria(4)]).shape[1] == 4
    first = int(talkative_model.generate(batch[:1])[0, 1])
    ended = talkative_model.generate(batch[:1], stopping_criteria=[EosTokenCriteria(first)], early_stopping=True)
    assert first in ended[0, 1:].tolist() or EOS in ended[0].tolist()
    expected = talkative_model.generate(batch[:1], eos_token_id=[EOS, first], early_stopping=True)
    assert torch.equal(ended, expected)


def test_done_processes_go_on_with_the_others_that_share_weights(talkative_model, monkeypatch):
    batch = as_batch(SOURCES)
    expected = talkative_model.generate(batch)
    rounds = iter(range(60))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda count: count.fill_(next(rounds, None) is not None))
    forward, calls = type(talkative_model).forward, []
    monkeypatch.setattr(
        type(talkative_model), "forward", lambda self, **inputs: calls.append(1) or forward(self, **inputs)
    )
    assert torch.equal(talkative_model.generate(batch, synced_gpus=True), expected)
    assert len(calls) == 60


def test_more_hypotheses_than_there_are_come_back_empty():
    model = lively(3, seed=1)
    output = model.generate(torch.tensor([[2, 1]]), num_beams=9, num_return_sequences=9, max_new_tokens=1)
    assert output[3:].tolist() == [[0, 0]] * 6


def test_a_source_of_padding_alone_scores_the_same_with_both_decoders(talkative_model):
    options = {"attention_mask": torch.tensor([[0, 0], [1, 1]]), "return_dict_in_generate": True, "output_scores": True}
    talkative_model.half().float()
    output = talkative_model.generate(torch.tensor([[0, 0], [7, 1]]), **options)
    assert output.sequences_scores.isfinite().all()
    for implementation in ("sdpa", "eager"):
        talkative_model.set_attn_implementation(implementation)
        slow = talkative_model.generate(torch.tensor([[0, 0], [7, 1]]), use_cache=False, **options)
        assert torch.equal(slow.sequences, output.sequences)
        assert torch.allclose(slow.sequences_scores, output.sequences_scores, atol=1e-4)


def test_weights_in_several_places_are_left_to_the_model(talkative_model, monkeypatch):
    monkeypatch.setattr(IncrementalDecoder, "prefill", None)
    talkative_model.lm_head.weight.device_mesh = "as of FSDP"
    talkative_model.generate(as_batch(SOURCES[:1]))


def test_labels_that_a_trainer_passes_along_change_nothing(talkative_model, monkeypatch):
    batch = as_batch(SOURCES)
    expected = talkative_model.generate(batch)
    assert torch.equal(talkative_model.generate(batch, labels=batch, use_cache=False), expected)
    monkeypatch.setattr(step_decoder_vaswani.ForwardDecoder, "prefill", None)  # the slow way is not taken
    assert torch.equal(talkative_model.generate(batch, labels=batch), expected)


SCORES = {"return_dict_in_generate": True, "output_scores": True}


def scores_of(model: VaswaniForConditionalGeneration) -> torch.Tensor:
    return model.generate(as_batch(SOURCES), **SCORES).sequences_scores


def check_search_against_forward(model: VaswaniForConditionalGeneration, plain: torch.Tensor) -> None:
    """Beam search finds what the definition finds by calls of the whole model, and not what it found before."""
    found = [beam_search_by_definition(model, source, 4, 0.6, "never", "gnmt")[0] for source in SOURCES]
    scores = scores_of(model)
    assert torch.allclose(scores, torch.tensor([score for score, _ in found]), atol=1e-4)
    assert not torch.allclose(scores, plain, atol=1e-3, rtol=0)
    for (_, expected), row in zip(found, model.generate(as_batch(SOURCES)).tolist(), strict=True):
        assert row == [0, *expected] + [0] * (len(row) - 1 - len(expected))


class Doubled(nn.Linear):
    """Stands for adapters and quantised layers: more than its weights."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_layers_that_are_more_than_their_weights_are_called(talkative_model, monkeypatch):
    plain = scores_of(talkative_model)
    layer = talkative_model.model.decoder.layers[1]
    for linear in (layer.self_attn.q_proj, layer.encoder_attn.out_proj, layer.feed_forward.fc1):
        linear.__class__ = Doubled
    check_search_against_forward(talkative_model, plain)
    monkeypatch.setattr(step_decoder_vaswani.ForwardDecoder, "prefill", None)  # adapters do not make the search slow
    talkative_model.generate(as_batch(SOURCES))


def rolled(output: object) -> object:
    """What a module gives, its last dimension rolled by one place."""
    if isinstance(output, torch.Tensor):
        return output.roll(1, -1)
    if isinstance(output, tuple):
        return (output[0].roll(1, -1), *output[1:])
    name = "logits" if "logits" in output else "last_hidden_state"
    output[name] = output[name].roll(1, -1)
    return output


MODULES = ["", "lm_head", "model.decoder.embed_tokens", "model.decoder.embed_positions", "model.decoder.layers.1"]
MODULES += [f"model.decoder.layers.0.{name}" for name in ("self_attn", "encoder_attn", "feed_forward.fc1")]
MODULES += ["model.decoder.layers.1.encoder_attn.k_proj", "model.decoder.layers.1.feed_forward_residual"]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("kind", ["hook", "forward"])
def test_hooks_and_replaced_methods_have_their_effect(talkative_model, name, kind):
    plain = scores_of(talkative_model)
    module = talkative_model.get_submodule(name)
    if kind == "hook":
        module.register_forward_hook(lambda module, args, output: rolled(output))
    else:
        forward = module.forward
        module.forward = lambda *args, **kwargs: rolled(forward(*args, **kwargs))
    check_search_against_forward(talkative_model, plain)


def test_hooks_before_a_module_have_their_effect(talkative_model):
    plain = scores_of(talkative_model)
    layer = talkative_model.model.decoder.layers[1]
    layer.register_forward_pre_hook(lambda module, args: (args[0].roll(1, -1), *args[1:]))
    check_search_against_forward(talkative_model, plain)


@pytest.mark.parametrize("name", ["sharp", "sdpa"])
def test_an_attention_function_of_ones_own_has_its_effect(talkative_model, monkeypatch, name):
    def sharp(module, query, *args, **kwargs):
        return eager_attention_forward(module, 3 * query, *args, **kwargs)

    plain = scores_of(talkative_model)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, name, sharp)
    AttentionMaskInterface.register("sharp", eager_mask)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS, name, eager_mask)
    talkative_model.set_attn_implementation(name)
    check_search_against_forward(talkative_model, plain)


def test_a_layer_of_another_class_has_its_effect(talkative_model):
    class Skipping(VaswaniDecoderLayer):
        def forward(self, hidden_states, *args, **kwargs):
            return hidden_states.roll(1, -1) + super().forward(hidden_states, *args, **kwargs)

    plain = scores_of(talkative_model)
    talkative_model.model.decoder.layers[0].__class__ = Skipping
    check_search_against_forward(talkative_model, plain)


def test_replaced_inputs_reach_the_decoder(talkative_model):
    """Prefix tuning gives the decoder more than tokens in this way; here it is another source."""
    other = as_batch(SOURCES[::-1])
    expected = talkative_model.generate(other, max_new_tokens=9)
    encoded = talkative_model.get_encoder()(other, other.ne(0))[0].repeat_interleave(4, 0)
    prepare = talkative_model.prepare_inputs_for_generation

    def replaced(*args, **kwargs):
        another = {"encoder_outputs": (encoded,), "attention_mask": other.ne(0).repeat_interleave(4, 0)}
        return {**prepare(*args, **kwargs), **another}

    talkative_model.prepare_inputs_for_generation = replaced
    batch = as_batch(SOURCES)
    for use_cache in (True, False):
        assert torch.equal(talkative_model.generate(batch, max_new_tokens=9, use_cache=use_cache), expected)
    del talkative_model.prepare_inputs_for_generation
    assert not torch.equal(talkative_model.generate(batch, max_new_tokens=9), expected)


def test_dropout_that_is_on_is_on_in_the_search(talkative_model):
    talkative_model.train()
    talkative_model.config.attention_dropout = 0.5
    for module in talkative_model.modules():
        module.dropout = 0.0  # of the residuals, which are called
    talkative_model.get_encoder().eval()
    scores = {float(talkative_model.generate(as_batch(SOURCES[:1]), **SCORES).sequences_scores) for _ in range(5)}
    assert len(scores) > 1


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """accelerate's state of a new process: the first to ask decides the precision for all that follow."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_accelerate")
def test_recorded_attentions_and_mixed_precision_leave_the_search_fast(talkative_model, monkeypatch):
    batch = as_batch(SOURCES)
    expected = talkative_model.generate(batch)
    talkative_model.set_attn_implementation("eager")
    talkative_model.generate(batch, output_attentions=True, return_dict_in_generate=True)  # installs hooks that stay
    monkeypatch.setattr(step_decoder_vaswani.ForwardDecoder, "prefill", None)
    assert torch.equal(talkative_model.generate(batch), expected)
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    prepared = accelerator.prepare_model(talkative_model, evaluation_mode=True)
    assert "forward" in vars(prepared)
    assert torch.equal(prepared.generate(batch), expected)
    assert torch.equal(accelerator.unwrap_model(prepared, keep_fp32_wrapper=False).generate(batch), expected)


def test_changed_weights_are_seen_by_the_next_search(talkative_model):
    batch = as_batch(SOURCES)
    before = talkative_model.generate(batch)
    talkative_model.model.decoder.layers[0].feed_forward.fc1.weight.data.mul_(-1)
    after = talkative_model.generate(batch)
    assert not torch.equal(before, after)
    assert torch.equal(after, talkative_model.generate(batch, use_cache=False))


@pytest.mark.parametrize("kind", ["bfloat16", "float64"])
def test_other_precisions_find_almost_the_same(talkative_model, kind):
    batch = as_batch(SOURCES)
    options = {"return_dict_in_generate": True, "output_scores": True}
    expected = talkative_model.generate(batch, **options).sequences_scores
    scores = talkative_model.to(getattr(torch, kind)).generate(batch, **options).sequences_scores
    assert torch.allclose(scores.float(), expected, rtol=0.1)


def test_autocast_finds_almost_the_same(talkative_model):
    options = {"return_dict_in_generate": True, "output_scores": True}
    expected = talkative_model.generate(as_batch(SOURCES), **options).sequences_scores
    with torch.autocast("cpu", torch.bfloat16):
        scores = talkative_model.generate(as_batch(SOURCES), **options).sequences_scores
    assert torch.allclose(scores, expected, rtol=0.1)
    assert not torch.equal(scores, expected)


@pytest.mark.parametrize("vocabulary", [7, 4096, 5003])
def test_best_tokens_are_those_of_log_softmax(vocabulary):
    logits = torch.randn(3, vocabulary) * 10
    logits[0, -1], logits[1, 0] = 100.0, 90.0
    expected = logits.log_softmax(-1).topk(min(8, vocabulary))
    values, tokens = best_tokens(logits, 8)
    assert torch.equal(tokens, expected.indices)
    assert torch.allclose(values, expected.values, atol=1e-5)
