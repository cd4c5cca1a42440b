"""The choice of the fastest precision, from times that a stand-in of the clock tells."""

import time

import pytest
import torch

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.training import precision
from vaswani_transformer.training.precision import compare, fastest_precision, relative_speeds, usable_precisions


@pytest.mark.parametrize(
    ("speeds", "chosen"),
    [
        ({"float32": 1.0, "bf16": 0.7}, "float32"),
        ({"float32": 1.0, "bf16": 1.04}, "float32"),
        ({"float32": 1.0, "bf16": 1.2}, "bf16"),
        ({"float32": 1.0, "bf16": 3.0, "fp16": 3.1}, "bf16"),
        ({"float32": 1.0, "bf16": 0.9, "fp16": 2.0}, "fp16"),
        ({"float32": 1.0}, "float32"),
    ],
)
def test_what_rounds_more_must_be_clearly_faster(speeds, chosen):
    assert fastest_precision(speeds) == chosen


def test_the_best_time_of_each_counts_but_not_the_first(monkeypatch):
    now, times = 0.0, {"float32": [9.0, 2.0, 3.0, 2.5], "bf16": [1.0, 8.0, 4.0, 5.0]}

    def work(precision):
        nonlocal now
        now += times[precision].pop(0)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert compare(["float32", "bf16"], work, 18.0) == {"float32": 1.0, "bf16": 0.5}
    assert times == {"float32": [], "bf16": []}  # two rounds took 17 seconds, and a third was begun


@pytest.mark.parametrize("vocabularies", [{}, {"target_vocab_size": 9}])
def test_a_model_of_any_size_is_measured(vocabularies, monkeypatch):
    monkeypatch.setattr(precision, "has_products_of", lambda dtype: True)
    config = VaswaniConfig(vocab_size=50, d_model=8, d_ff=8, num_heads=2, **vocabularies)
    before = config.to_dict()
    speeds = relative_speeds(config, torch.device("cpu"), 10, seconds=0.0)
    assert list(speeds) == ["float32", "bf16"]
    assert speeds["float32"] == 1.0
    assert speeds["bf16"] > 0
    assert config.to_dict() == before


def test_no_processor_with_avx2_alone_is_asked_for_bfloat16(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert usable_precisions(torch.device("cpu")) == ["float32"]
