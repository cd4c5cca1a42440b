"""Operations against PyTorch's own counter, the rate by a clock of operations, the cost against Table 2."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.experiments.comparison import paper_cost
from vaswani_transformer.training import precision
from vaswani_transformer.training.costs import sustained_rate, training_flops


SMALL = {"vocab_size": 37, "d_model": 24, "d_ff": 40, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"d_k": 5, "d_v": 7},
        {"num_heads": 1, "d_k": 9, "encoder_layers": 3, "decoder_layers": 1},
        {"attention_bias": False, "position_encoding": "learned"},
        {"decoder_d_ff": 56, "target_vocab_size": 41},
        {"tie_word_embeddings": False},
    ],
    ids=str,
)
@pytest.mark.parametrize(("sentences", "source_length", "target_length"), [(3, 6, 4), (1, 2, 11), (5, 1, 1)])
def test_counts_what_pytorch_counts(changes, sentences, source_length, target_length):
    config = VaswaniConfig(**{**SMALL, **changes}, attn_implementation="eager")
    model = VaswaniForConditionalGeneration(config).train()
    source = torch.randint(3, 37, (sentences, source_length))
    labels = torch.randint(3, 37, (sentences, target_length))
    source[1:, 4:] = 0
    labels[1:, 2:] = -100
    with FlopCounterMode(display=False) as counter:
        model(input_ids=source, labels=labels).loss.backward()
    assert counter.get_total_flops() > 0
    assert training_flops(config, sentences, source_length, target_length) == counter.get_total_flops()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rate_is_that_of_the_fastest_product(monkeypatch, dtype):
    """Time passes by the operations that PyTorch counts, at 1e11 in a second, and by interruptions.

    Each interruption delays a reading of the clock; the second product is not interrupted.
    """
    interruptions = iter([9.0, 0.0, 0.1, 0.1, 0.0, 0.0, 0.1, 0.1, 0.1])
    passed = 0.0

    def perf_counter() -> float:
        nonlocal passed
        passed += next(interruptions, 0.0)
        return passed + counter.get_total_flops() / 1e11

    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=perf_counter))
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:  # which counts products of shapes alone
        assert sustained_rate("cpu", dtype) == pytest.approx(1e11, rel=1e-9)


@pytest.mark.parametrize(("name", "printed"), [("base", "3.3e+18"), ("big", "2.3e+19")])
def test_time_devices_and_rate_make_what_table_2_prints(name, printed):
    cost = paper_cost(name)
    assert f"{cost.by_the_papers_accounting:.1e}" == printed


@pytest.mark.parametrize("name", ["base", "big"])
def test_count_is_about_six_operations_a_parameter_and_token(name):
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(VaswaniConfig.from_variant(name))
    parameters = sum(parameter.numel() for parameter in model.parameters())  # those of the softmax, too, multiply
    tokens = 25_000 * {"base": 100_000, "big": 300_000}[name]
    cost = paper_cost(name)
    assert cost.counted == pytest.approx(6 * parameters * tokens, rel=0.03)
