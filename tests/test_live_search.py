"""The search shown while it runs, against `generate`, the reference search and the recorded search."""

import threading

import pytest
import torch
from models import EOS, SOURCES, Numbers, steps_by_definition

from vaswani_transformer.visualization.live_search import stream_search
from vaswani_transformer.visualization.search_trace import trace_search


def text_of(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))


@pytest.mark.parametrize("rule", ["never", False, True])
def test_each_step_shows_the_best_live_hypothesis(talkative_model, rule):
    options = {"num_beams": 4, "length_penalty": 0.6, "early_stopping": rule}
    source = SOURCES[0]
    *steps, end = stream_search(talkative_model, Numbers(), text_of(source), **options)
    expected = list(steps_by_definition(talkative_model, source, 4, 0.6, rule, "gnmt"))
    assert [step.text for step in steps] == [text_of(live[0][1]) for _, live, _ in expected]
    assert not any(step.hypotheses for step in steps)
    assert end.hypotheses


@pytest.mark.parametrize("source", SOURCES[:4], ids=len)
def test_it_ends_with_what_generate_returns(talkative_model, source):
    options = {"num_beams": 4, "num_return_sequences": 4}
    *_, end = stream_search(talkative_model, Numbers(), text_of(source), **options)
    generated = talkative_model.generate(torch.tensor([source]), **options)
    assert end.text == end.hypotheses[0].text
    for found, row in zip(end.hypotheses, generated[:, 1:].tolist(), strict=True):
        assert list(found.tokens) == (row[: row.index(EOS) + 1] if EOS in row else row)
    trace = trace_search(talkative_model, Numbers(), text_of(source), **options)
    assert end.hypotheses == trace.hypotheses


def test_errors_reach_the_reader(talkative_model):
    with pytest.raises(ValueError, match="length_penalty"):
        list(stream_search(talkative_model, Numbers(), "7 8 1", num_beams=2, length_penalty=1000.0))


def test_an_abandoned_search_frees_the_model(talkative_model):
    lock = threading.Lock()
    search = stream_search(talkative_model, Numbers(), text_of(SOURCES[0]), lock, num_beams=2)
    next(search)
    search.close()
    assert lock.acquire(timeout=30)
