"""Section 6.1: the search against exhaustive search, its definition, and transformers."""

import itertools
import logging
import math
import re

import pytest
import torch
from models import EOS, SOURCES, as_batch, beam_search_by_definition, lively, penalty, talkative
from tokenizers import Tokenizer, decoders, models, normalizers
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast
from transformers.generation import (
    GenerateBeamEncoderDecoderOutput,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.decoding.ensemble import Ensemble
from vaswani_transformer.decoding.phrases import ForcedPhrases
from vaswani_transformer.engines.marian import to_marian


@pytest.fixture(scope="module")
def talkative_model() -> VaswaniForConditionalGeneration:
    """One talkative model for all tests, so that they share what the definition computes of it."""
    return talkative()


@torch.no_grad()
def every_ending(
    models: list[VaswaniForConditionalGeneration], source: torch.Tensor, longest: int, cut_off: bool
) -> dict:
    """log P of every sequence of at most `longest` tokens that ends in its only EOS, or is `cut_off` there.

    The probability of a token is the mean of the models'.
    """
    others = [token for token in range(models[0].config.vocab_size) if token != EOS]
    inner = torch.tensor(list(itertools.product(others, repeat=longest - 1)))  # [sequences, longest - 1]
    ids = F.pad(inner, (1, 0))
    every = [model(source.expand(len(ids), -1), decoder_input_ids=ids).logits.double().softmax(-1) for model in models]
    logits = torch.stack(every).mean(0).log()
    before = F.pad(logits[:, :-1].gather(2, inner.unsqueeze(-1)).squeeze(-1).cumsum(-1), (1, 0))
    totals = (before + logits[:, :, EOS]).tolist()  # [sequences, longest]
    endings = {
        (*tokens[:length], EOS): totals[number][length]
        for number, tokens in enumerate(inner.tolist())
        for length in range(longest)
    }
    cut = (before[:, -1:] + logits[:, -1]).tolist()  # [sequences, vocabulary]
    return endings | {
        (*tokens, last): cut[number][last] for number, tokens in enumerate(inner.tolist()) for last in others if cut_off
    }


def scored_search(longest: int, alpha: float, penalty_type: str, **more: object) -> dict:
    """Options of `generate` that return scores, too."""
    options = {"max_new_tokens": longest, "length_penalty": alpha, "length_penalty_type": penalty_type}
    return {**options, "return_dict_in_generate": True, "output_scores": True, **more}


def check_best(output: GenerateBeamEncoderDecoderOutput, scores: dict[tuple[int, ...], float]) -> None:
    """The sequences found are the best of all that have scores, in order."""
    rows = [tuple(row) for row in output.sequences[:, 1:].tolist()]
    found = [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]
    expected = pytest.approx(sorted(scores.values(), reverse=True)[: len(found)], abs=1e-4)
    assert [scores[tokens] for tokens in found] == expected
    assert len({*found}) == len(found)
    if output.sequences_scores is not None:
        assert output.sequences_scores.tolist() == expected


@pytest.mark.parametrize(
    ("vocabulary", "longest", "models"), [(3, 6, 5), (5, 4, 10), (5, 6, 1)], ids=["3^6", "5^4", "5^6"]
)
@pytest.mark.parametrize("penalty_type", ["gnmt", "transformers"])
def test_no_sequence_is_better_than_what_a_beam_of_full_width_finds(vocabulary, longest, models, penalty_type):
    source = torch.tensor([[2, 0, 1]])
    width = vocabulary * (vocabulary - 1) ** (longest - 1) // 2  # all continuations are then candidates
    for seed in range(models):
        model = lively(vocabulary, seed, num_heads=1)
        endings = every_ending([model], source, longest, cut_off=penalty_type == "transformers")
        alpha = (0.0, 0.6, 1.0, 2.0, -0.5)[seed % 5]
        scores = {tokens: score / penalty(len(tokens), alpha, penalty_type) for tokens, score in endings.items()}
        options = scored_search(longest, alpha, penalty_type, output_scores=bool(seed % 2))
        check_best(model.generate(source, num_beams=width, num_return_sequences=3, **options), scores)
        narrow = model.generate(source, num_beams=2, **options)
        if seed % 2 and EOS in narrow.sequences[0].tolist():
            assert float(narrow.sequences_scores[0]) <= max(scores.values()) + 1e-4


@pytest.mark.parametrize("penalty_type", ["gnmt", "transformers"])
def test_no_sequence_is_likelier_for_an_ensemble_than_what_a_beam_of_full_width_finds(penalty_type):
    source, longest, vocabulary, alpha = torch.tensor([[2, 0, 1]]), 4, 5, 0.6
    for seed in range(6):
        sizes = [{"num_heads": 1}, {"d_model": 16, "decoder_layers": 2}, {"d_ff": 8}][: 2 + seed % 2]
        models = [lively(vocabulary, 10 * seed + number, **each) for number, each in enumerate(sizes)]
        endings = every_ending(models, source, longest, cut_off=penalty_type == "transformers")
        scores = {tokens: score / penalty(len(tokens), alpha, penalty_type) for tokens, score in endings.items()}
        options = scored_search(
            longest, alpha, penalty_type, num_return_sequences=3, num_beams=vocabulary**longest // 2
        )
        check_best(models[0].generate(source, custom_generate=Ensemble(models[1:]), **options), scores)


def contains(tokens: tuple[int, ...], phrase: list[int]) -> bool:
    return any(list(tokens[start : start + len(phrase)]) == phrase for start in range(len(tokens)))


PHRASES = {
    "one token": [[3]],
    "two tokens": [[3, 4]],
    "two phrases": [[2, 3], [4]],
    "a repeated token": [[3, 3]],
    "alternatives": [[[3, 4, 2], [4, 4]]],
    "a phrase and alternatives": [[2], [[3, 4], [4, 3]]],
}


@pytest.mark.parametrize("phrases", PHRASES.values(), ids=PHRASES)
@pytest.mark.parametrize("penalty_type", ["gnmt", "transformers"])
def test_no_sequence_with_the_phrases_is_better_than_what_a_beam_of_full_width_finds(phrases, penalty_type):
    source, longest, vocabulary = torch.tensor([[2, 0, 1]]), 4, 5
    all_of = [[phrase] if isinstance(phrase[0], int) else phrase for phrase in phrases]
    for seed, alpha in enumerate((0.6, 1.0, -0.5)):
        model = lively(vocabulary, seed, num_heads=1)
        endings = every_ending([model], source, longest, cut_off=penalty_type == "transformers")
        scores = {
            tokens: score / penalty(len(tokens), alpha, penalty_type)
            for tokens, score in endings.items()
            if all(any(contains(tokens, phrase) for phrase in alternatives) for alternatives in all_of)
        }
        options = scored_search(
            longest, alpha, penalty_type, num_return_sequences=2, num_beams=vocabulary**longest // 2
        )
        check_best(model.generate(source, custom_generate=ForcedPhrases(phrases), **options), scores)


# Words to force, their pattern in text, and all pieces of the vocabulary.
FORCED_WORDS = {
    "one word begins another": (["Haus", "Haustür"], [r"\bHaus\b", r"\bHaustür\b"], ["▁Haus", "tür", "."]),
    "a script without spaces": (["狗"], ["狗"], ["▁狗", "狗", "我的", "。"]),
}


@pytest.mark.parametrize(("words", "patterns", "pieces"), FORCED_WORDS.values(), ids=FORCED_WORDS)
def test_no_text_with_the_words_is_better_than_what_a_beam_of_full_width_finds(words, patterns, pieces):
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in ["<pad>", "</s>", *pieces]], 0, byte_fallback=True))
    backend.normalizer = normalizers.Prepend("▁")
    replace = decoders.Replace("▁", " ")
    backend.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")
    source, longest, vocabulary = torch.tensor([[2, 0, 1]]), 4, len(tokenizer)
    for seed in (1, 7):
        model = lively(vocabulary, seed, num_heads=1)
        endings = every_ending([model], source, longest, cut_off=False)
        texts = {tokens: tokenizer.decode(tokens, skip_special_tokens=True) for tokens in endings if 0 not in tokens}
        scores = [
            endings[tokens] / penalty(len(tokens), 0.6, "gnmt")
            for tokens, text in texts.items()
            if all(re.search(pattern, text) for pattern in patterns)
        ]
        options = scored_search(longest, 0.6, "gnmt", num_return_sequences=2, num_beams=vocabulary**longest // 2)
        loop = ForcedPhrases.from_words(words, tokenizer)
        found = model.generate(source, custom_generate=loop, suppress_tokens=[0], **options)
        assert found.sequences_scores.tolist() == pytest.approx(sorted(scores, reverse=True)[:2], abs=1e-4)


@pytest.mark.parametrize(("num_beams", "use_cache"), [(2, False), (4, True)])
def test_narrow_beams_find_phrases_in_each_sentence_of_a_batch(talkative_model, num_beams, use_cache):
    phrases = [[9, 17, 30], [5, 6]]
    settings = {"num_beams": num_beams, "custom_generate": ForcedPhrases(phrases), "use_cache": use_cache}
    settings |= {"max_new_tokens_over_source": 20}
    batch = talkative_model.generate(as_batch(SOURCES), **settings)
    plain = talkative_model.generate(as_batch(SOURCES), num_beams=num_beams, max_new_tokens_over_source=20)
    alone = [talkative_model.generate(torch.tensor([source]), **settings) for source in SOURCES]
    for number, row in enumerate(batch.tolist()):
        assert all(contains(tuple(row), phrase) for phrase in phrases)
        expected = alone[number][0].tolist()
        width = min(len(row), len(expected))
        assert row[:width] == expected[:width]
        assert not any(row[width:] + expected[width:])
    assert not any(contains(tuple(row), phrases[0]) for row in plain.tolist())


def test_a_phrase_of_no_word_is_refused(talkative_model):
    for token in (EOS, -1, 40):
        with pytest.raises(ValueError, match=r"^phrases: is .*; give ids of the model's vocabulary"):
            talkative_model.generate(as_batch(SOURCES), custom_generate=ForcedPhrases([[9, token]]))


def test_a_translation_that_misses_a_phrase_is_returned_with_a_warning(talkative_model, caplog):
    logging.getLogger("transformers").propagate = True
    settings = {"num_beams": 2, "custom_generate": ForcedPhrases([[9, 17], [17, 9]]), "max_new_tokens": 4}
    barred = LogitsProcessorList([lambda ids, scores: scores.index_fill(1, torch.tensor([17]), -math.inf)])
    rows = talkative_model.generate(as_batch(SOURCES[:2]), logits_processor=barred, **settings).tolist()
    assert not any(17 in row for row in rows)
    (record,) = caplog.records
    assert record.getMessage().startswith("phrases: translations of the sentences [0, 1] reach their")


@pytest.mark.parametrize("limit", [3, 5, 9])
def test_no_forced_end_makes_up_for_a_phrase(talkative_model, limit):
    settings = {"num_beams": 4, "custom_generate": ForcedPhrases([[9, 17]])}
    settings |= {"forced_eos_token_id": EOS, "max_new_tokens": limit}
    for row in talkative_model.generate(as_batch(SOURCES), **settings).tolist():
        assert contains(tuple(row), [9, 17])


def test_phrases_may_begin_in_the_prefix(talkative_model):
    prefix = torch.tensor([[0, 5, 9]])
    plain = {"num_beams": 4, "decoder_input_ids": prefix}
    source = as_batch(SOURCES[:1])
    met = talkative_model.generate(source, custom_generate=ForcedPhrases([[5, 9]]), **plain)
    assert met.equal(talkative_model.generate(source, **plain))
    begun = ForcedPhrases([[9, 17]])
    row = talkative_model.generate(source, custom_generate=begun, max_new_tokens=4, **plain)[0].tolist()
    assert row[:4] == [0, 5, 9, 17]


@pytest.mark.parametrize("num_beams", [2, 4, 21])
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
    """Otherwise the tests above and below would show little."""
    output = talkative_model.generate(as_batch(SOURCES))
    assert len({row.index(EOS) for row in output.tolist()}) > 4


# As OPUS-MT models have them; here tokens that would otherwise be chosen.
PROCESSORS = {"bad_words_ids": [[5], [7, 8]], "renormalize_logits": True}
PROCESSORS |= {"forced_eos_token_id": EOS, "max_new_tokens_over_source": 2}


@pytest.mark.parametrize("processors", [{}, PROCESSORS], ids=["no processors", "processors"])
@pytest.mark.parametrize("num_beams", [2, 9])
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


def test_beam_search_with_transformers_rules_equals_marian():
    """Random models: some of their hypotheses end in EOS and some at the length limit."""
    cut = hypotheses = 0
    for seed in range(60):
        model = lively(24, seed, layer_norm_eps=1e-5)  # Marian's
        bias = model.model.decoder.layers[-1].feed_forward_residual.norm.bias.data
        model.model.shared.weight.data[EOS] += (0.0, 0.3, 0.6)[seed % 3] * bias  # EOS becomes likelier
        num_beams = (2, 4)[seed % 2]
        options = {"num_beams": num_beams, "num_return_sequences": num_beams, "early_stopping": seed % 7 < 4}
        options |= {"length_penalty": (0.0, 0.3, 1.0, 2.0, -0.5)[seed % 5], "max_new_tokens": (1, 3, 6, 12)[seed % 4]}
        # Marian never generates its padding token, which the model under test may.
        options |= {"bad_words_ids": [[0]], "renormalize_logits": True}
        options |= {"return_dict_in_generate": True, "output_scores": True}
        batch = as_batch([[token % 24 for token in source] for source in SOURCES])
        mask = batch.ne(0).long()
        ours = model.generate(batch, attention_mask=mask, length_penalty_type="transformers", **options)
        theirs = to_marian(model, positions=40).generate(batch, attention_mask=mask, **options)
        assert torch.allclose(ours.sequences_scores, theirs.sequences_scores, atol=1e-4), seed
        ranked = theirs.sequences_scores.unflatten(0, (-1, num_beams))
        is_tie = (ranked.diff(dim=-1).abs() < 1e-4).any(-1).repeat_interleave(num_beams)  # [hypotheses]
        ends = theirs.sequences.eq(EOS).long()
        sequences = theirs.sequences.masked_fill(ends.cumsum(-1) > ends, 0)  # transformers has EOS for a padding of 0
        assert torch.equal(ours.sequences[~is_tie], sequences[~is_tie]), seed
        cut += int(theirs.sequences.ne(EOS).all(-1).sum())
        hypotheses += len(sequences)
    assert 0.2 < cut / hypotheses < 0.8


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


class Halve(LogitsProcessor):
    """Makes every token but one half as likely."""

    def __call__(self, input_ids, scores):
        likelier = scores[:, 11].clone()
        scores = scores - math.log(2)
        scores[:, 11] = likelier
        return scores


def test_logits_processors_change_the_scores_with_either_decoder(talkative_model):
    batch, options = as_batch(SOURCES), {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 6}
    output = talkative_model.generate(batch, logits_processor=LogitsProcessorList([Halve()]), **options)
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
    assert talkative_model.generate(batch, stopping_criteria=[MaxLengthCriteria(3)]).shape[1] == 3


def test_sampled_beams_are_likely_and_differ(talkative_model):
    batch = as_batch(SOURCES[:1]).expand(200, -1)
    options = {"do_sample": True, "num_beams": 2, "top_k": 0, "temperature": 9.0}
    drawn = talkative_model.generate(batch, max_new_tokens=1, min_new_tokens=1, **options)[:, 1]
    with torch.no_grad():
        logits = talkative_model(batch[:1], decoder_input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, -1]
    likeliest = int(logits.index_fill(0, torch.tensor([EOS]), -math.inf).argmax())
    assert drawn.unique().numel() > 1
    assert int(drawn.mode().values) == likeliest


def test_more_hypotheses_than_there_are_come_back_empty():
    model = lively(3, seed=1)
    output = model.generate(torch.tensor([[2, 1]]), num_beams=9, num_return_sequences=9, max_new_tokens=1)
    assert output[3:].tolist() == [[0, 0]] * 6
