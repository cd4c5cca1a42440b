"""The recorded search against the reference search, step by step, and against the scores of `generate`."""

from collections import Counter

import pytest
import torch
from models import EOS, SOURCES, Numbers, penalty, steps_by_definition

from vaswani_transformer.visualization.search_trace import Candidate, Fate, SearchTrace, StopReason, trace_search


def trace(model, source: list[int], **options: object) -> SearchTrace:
    return trace_search(model, Numbers(), " ".join(map(str, source)), **options)


def tokens_of(trace: SearchTrace, step: int, index: int) -> tuple[int, ...]:
    """The tokens of a candidate and its ancestors."""
    tokens: list[int] = []
    while index is not None:
        step, candidate = step - 1, trace.steps[step - 1].candidates[index]
        tokens.append(candidate.token)
        index = candidate.parent
    return tuple(reversed(tokens))


def expected_fate(
    tokens: tuple, step: int, steps: list, rule: object, num_beams: int, is_cut: bool
) -> tuple[Fate, int | None]:
    """Fate of a candidate in the reference search, and its step; `steps` are from `steps_by_definition`.

    `is_cut` says whether the length limit ended it.
    """
    candidates, live, finished = (tuple(tokens for _, tokens in kind) for kind in steps[step - 1])
    kept = [{tokens for _, tokens in finished} for _, _, finished in steps]
    if tokens[-1] == EOS or is_cut:
        if tokens not in finished:
            outside = rule != "never" and candidates.index(tokens) >= num_beams
            return (Fate.OUTSIDE_BEAM if outside else Fate.WORSE), step
        lost = [number for number in range(step + 1, len(steps) + 1) if tokens not in kept[number - 1]]
        return (Fate.DISPLACED, lost[0]) if lost else (Fate.FINISHED, None)
    if tokens not in live:
        return Fate.BEATEN, step
    if step < len(steps):
        return Fate.LIVE, None
    return Fate.STOPPED, step  # or at the length limit, see the test


@pytest.mark.parametrize(
    ("num_beams", "alpha", "kind"), [(4, 0.6, "gnmt"), (2, 1.0, "transformers"), (3, -1.0, "gnmt"), (4, 0.0, "gnmt")]
)
@pytest.mark.parametrize("rule", ["never", False, True])
def test_every_step_equals_the_reference_search(talkative_model, num_beams, alpha, kind, rule):
    options = {"num_beams": num_beams, "length_penalty": alpha, "length_penalty_type": kind, "early_stopping": rule}
    for source in SOURCES[:3]:
        steps = list(steps_by_definition(talkative_model, source, num_beams, alpha, rule, kind))
        found = trace(talkative_model, source, **options)
        assert len(found.steps) == len(steps)
        for number, (step, (candidates, live, finished)) in enumerate(zip(found.steps, steps, strict=True), start=1):
            sequences = [tokens_of(found, number, index) for index in range(len(step.candidates))]
            # Sets, because nearly equal scores may be in another order in float32.
            scores = {tokens: score for score, tokens in candidates}
            assert set(sequences) == scores.keys()
            assert {sequences[index] for index in step.live} == {tokens for _, tokens in live}
            assert {tokens_of(found, *place) for place in step.finished} == {tokens for _, tokens in finished}
            for candidate, tokens in zip(step.candidates, sequences, strict=True):
                check_scores(found, number, candidate, scores[tokens], penalty(number, alpha, kind))
                is_cut = kind == "transformers" and number == found.length_limit
                fate, until = expected_fate(tokens, number, steps, rule, num_beams, is_cut)
                if fate is Fate.STOPPED and found.reason is StopReason.LENGTH_LIMIT:
                    fate = Fate.LENGTH_LIMIT
                if candidate.fate is Fate.UNFINISHED:  # returned, because nothing has finished
                    assert not finished
                    fate, until = Fate.UNFINISHED, None
                assert (candidate.fate, candidate.until) == (fate, until)


def check_scores(found: SearchTrace, number: int, candidate: Candidate, score: float, divisor: float) -> None:
    parent = 0.0 if candidate.parent is None else found.steps[number - 2].candidates[candidate.parent].score
    assert candidate.score == pytest.approx(score, abs=1e-4)
    assert candidate.normalized_score == pytest.approx(score / divisor, abs=1e-4)
    assert candidate.log_probability == pytest.approx(candidate.score - parent, abs=1e-4)


@pytest.mark.parametrize(
    ("rule", "alpha", "returned", "reason"),
    [
        ("never", 0.0, 1, StopReason.BOUND),
        ("never", 0.6, 1, StopReason.LENGTH_LIMIT),
        (False, -1.0, 1, StopReason.BOUND),
        (True, 0.6, 2, StopReason.ENOUGH_FINISHED),
    ],
)
def test_the_search_stops_at_its_bound_and_no_earlier(talkative_model, rule, alpha, returned, reason):
    reasons = set()
    for source in SOURCES[:3]:
        options = {"early_stopping": rule, "length_penalty": alpha, "num_return_sequences": returned}
        found = trace(talkative_model, source, **options)
        reasons.add(found.reason)
        reached = [
            step.deciding_score is not None and (step.bound is None or step.deciding_score >= step.bound)
            for step in found.steps
        ]
        assert not any(reached[:-1])
        assert reached[-1] == (found.reason is not StopReason.LENGTH_LIMIT)
        for number, step in enumerate(found.steps, start=1):
            length = found.length_limit if rule == "never" and alpha > 0 else number
            best = step.candidates[step.live[0]].score / penalty(length, alpha, "gnmt")
            assert step.bound == (None if rule is True else pytest.approx(best, abs=1e-5))
    assert reasons == {reason, StopReason.LENGTH_LIMIT}


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"early_stopping": True}, {"bad_words_ids": [[5], [7, 8]]}])
def test_scores_equal_those_of_generate(talkative_model, options):
    for source in SOURCES[:2]:
        expected = talkative_model.generate(
            torch.tensor([source]),
            num_return_sequences=2,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        found = trace(talkative_model, source, num_return_sequences=2, **options)
        for hypothesis, score, row in zip(
            found.hypotheses, expected.sequences_scores, expected.sequences.tolist(), strict=True
        ):
            assert hypothesis.score == pytest.approx(float(score), abs=1e-5)
            assert list(hypothesis.tokens) == row[1 : 1 + len(hypothesis.tokens)]
            assert not any(row[1 + len(hypothesis.tokens) :])
            step, index = hypothesis.place
            last = found.steps[step - 1].candidates[index]
            assert last.normalized_score == pytest.approx(hypothesis.score, abs=1e-6)
            assert tokens_of(found, *hypothesis.place) == hypothesis.tokens


def test_all_fates_occur(talkative_model):
    """Otherwise the tests above would show little."""
    fates = Counter()
    rules = ({"length_penalty": 0.0}, {"early_stopping": False}, {"max_new_tokens": 3, "num_return_sequences": 4})
    for source in SOURCES[:2]:
        for options in rules:
            for step in trace(talkative_model, source, num_beams=4, **options).steps:
                fates.update(candidate.fate for candidate in step.candidates)
    assert set(fates) == set(Fate)
