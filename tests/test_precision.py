"""The choice of the fastest precision, from times that a stand-in of the clock tells."""

import time

import pytest
import torch

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.system import processor
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


@pytest.mark.parametrize(
    ("limit", "precision", "lines"), [("AVX2", "bf16", 1), ("AVX2", "auto", 0), ("ALL", "bf16", 0)]
)
def test_who_asks_for_bfloat16_where_it_is_slow_is_told_once(limit, precision, lines, saved_model, monkeypatch, caplog):
    monkeypatch.setattr(processor.Path, "read_text", lambda *args, **options: "flags\t\t: fpu avx2 avx512bw\n")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    saved = open_model(saved_model)
    processor.warn_of_slow_bfloat16.cache_clear()
    for _ in range(2):
        saved.load_to_decode(precision)
    found = [record.getMessage() for record in caplog.records]
    assert found == [processor.SLOW_BFLOAT16] * lines
    processor.warn_of_slow_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("cpuinfo", "has_int8", "has_bfloat16"),
    [
        ("model name\t: x\nflags\t\t: fpu avx avx2\n", False, False),
        ("flags\t\t: fpu avx2 avx_vnni\n", True, False),
        ("flags\t\t: fpu avx2 avx512f avx512bw\n", False, True),
        ("flags\t\t: fpu avx2 avx512bw avx512_vnni\n", True, True),
        ("Features\t: asimd\n", True, True),
    ],
)
def test_the_kind_of_a_processor_is_told_by_its_flags(cpuinfo, has_int8, has_bfloat16, monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(processor.Path, "read_text", lambda *args, **options: cpuinfo)
    assert (processor.has_products_of("int8"), processor.has_products_of("bfloat16")) == (has_int8, has_bfloat16)


def test_no_processor_with_avx2_alone_is_asked_for_bfloat16(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert usable_precisions(torch.device("cpu")) == ["float32"]
