"""Section 6.1: the length penalty, the limit of each sentence, and the options of `generate`."""

import itertools
import math

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, MarianMTModel
from transformers.generation import LogitsProcessor, LogitsProcessorList

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration


EOS = 1


@pytest.fixture
def lively_model() -> VaswaniForConditionalGeneration:
    """Weights so large that hypotheses differ, and a vocabulary so small that all of them can be listed."""
    config = VaswaniConfig(vocab_size=5, d_model=8, d_ff=16, num_heads=2, encoder_layers=1, decoder_layers=1)
    model = VaswaniForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter)
    return model


@torch.no_grad()
def every_hypothesis(model: VaswaniForConditionalGeneration, source: torch.Tensor, longest: int) -> dict:
    """log P of every sequence that ends in its first EOS within `longest` tokens, or is `longest` tokens long."""
    scores = {}
    for length in range(1, longest + 1):
        for tokens in itertools.product(range(model.config.vocab_size), repeat=length):
            if EOS in tokens[:-1] or (tokens[-1] != EOS and length < longest):
                continue
            ids = torch.tensor([[0, *tokens]])
            log_probabilities = model(source, decoder_input_ids=ids[:, :-1]).logits[0].double().log_softmax(-1)
            scores[tokens] = sum(float(log_probabilities[i, token]) for i, token in enumerate(tokens))
    return scores


def gnmt_score(log_probability: float, length: int, alpha: float) -> float:
    return log_probability / ((5 + length) / 6) ** alpha


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_beam_search_maximises_the_score_of_wu_et_al_over_all_hypotheses(lively_model, alpha):
    source = torch.tensor([[3, 4, 1]])
    hypotheses = every_hypothesis(lively_model, source, longest=4)
    expected = {tokens: gnmt_score(score, len(tokens), alpha) for tokens, score in hypotheses.items()}
    best = max(expected, key=expected.get)
    output = lively_model.generate(
        source,
        num_beams=125,
        max_new_tokens=4,
        length_penalty=alpha,
        output_scores=True,
        return_dict_in_generate=True,
    )
    tokens = output.sequences[0, 1:].tolist()
    if EOS in tokens:
        tokens = tokens[: tokens.index(EOS) + 1]
    assert tuple(tokens) == best
    assert float(output.sequences_scores[0]) == pytest.approx(expected[best], rel=1e-5)


def test_penalty_of_transformers_can_be_chosen(lively_model):
    source = torch.tensor([[3, 4, 1]])
    hypotheses = every_hypothesis(lively_model, source, longest=4)
    # The two penalties must rank these hypotheses differently, or the test shows nothing.
    alpha = 3.0
    by_length = {tokens: score / len(tokens) ** alpha for tokens, score in hypotheses.items()}
    by_wu = {tokens: gnmt_score(score, len(tokens), alpha) for tokens, score in hypotheses.items()}
    output = lively_model.generate(
        source,
        num_beams=125,
        max_new_tokens=4,
        length_penalty=alpha,
        length_penalty_type="transformers",
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert float(output.sequences_scores[0]) == pytest.approx(max(by_length.values()), rel=1e-5)
    assert max(by_length.values()) != pytest.approx(max(by_wu.values()), rel=1e-3)


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


def test_beam_search_with_transformers_rules_equals_marian(config):
    from test_modeling_vaswani import marian_twin, multi_head, randomize

    model = VaswaniForConditionalGeneration(VaswaniConfig(**multi_head(config))).eval()
    randomize(model)
    marian: MarianMTModel = marian_twin(model)
    batch = torch.tensor([[7, 8, 9, 4, 5, 1], [7, 4, 1, 0, 0, 0]])
    options = {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False, "max_new_tokens": 12}
    # Marian never generates its padding token, which the model under test may.
    ours = model.generate(batch, length_penalty_type="transformers", bad_words_ids=[[0]], **options)
    theirs = marian.generate(batch, attention_mask=batch.ne(0).long(), bad_words_ids=[[0]], **options)
    assert torch.equal(ours, theirs)
