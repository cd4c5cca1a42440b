"""`recipes/benchmarks/table1.py`: the layers it measures, the exponents it fits, the files it writes."""

import json
import re
import sys

import pytest
import torch
from helpers import recipe_module


@pytest.fixture(scope="module")
def table1():
    """The benchmark as a module."""
    return recipe_module("benchmarks/table1.py")


@pytest.mark.parametrize("power", [0, 1, 2, 0.5])
def test_exponent_of_a_power_is_the_power(table1, power):
    sizes = [32, 64, 128, 256, 512]
    assert table1.exponent(sizes, [3e-4 * size**power for size in sizes]) == pytest.approx(power)


def test_what_small_sizes_cost_does_not_count(table1):
    assert table1.exponent([1, 2, 4, 8], [100, 50, 16, 64]) == pytest.approx(2)


@torch.no_grad()
def test_layers_are_of_one_size_and_full_attention_is_the_fused_one(table1):
    layers = table1.layers(table1.Arguments(neighborhood=10), n=40, d=64)
    assert layers.keys() == table1.PREDICTED.keys()
    outputs = {name: layer() for name, layer in layers.items()}
    assert all(output.numel() == 40 * 64 for output in outputs.values())
    fused = outputs["self-attention, fused"].transpose(1, 2)  # [1, n, heads, d_k]
    torch.testing.assert_close(outputs["self-attention"], fused, atol=1e-5, rtol=1e-5)
    assert (outputs["self-attention, restricted"] - fused).abs().max() > 1e-3


@torch.no_grad()
def test_compared_attentions_give_the_same(table1):
    full, fused, restricted = table1.masked(table1.Arguments(neighborhood=10), n=70, d=64)
    torch.testing.assert_close(full(), restricted(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(full(), fused(), atol=1e-5, rtol=1e-5)


def test_report_has_a_row_for_each_kind_of_layer(table1, tmp_path, monkeypatch):
    arguments = ["--max_length", "64", "--max_width", "64", "--neighborhood", "8", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["table1.py", *arguments, "--output", str(tmp_path / "out")])
    table1.main()
    results = json.loads((tmp_path / "out" / "table1.json").read_text(encoding="utf-8"))
    assert results["n"]["sizes"] == [4, 8, 16, 32, 64]
    assert results["d"]["sizes"] == [8, 16, 32, 64]
    assert results["restricted"]["largest_difference"] < 1e-5
    report = re.sub(" +", " ", (tmp_path / "out" / "table1.md").read_text(encoding="utf-8"))
    for name, growth in results["exponents"].items():
        assert f"| {name} | {growth['n']['predicted']} | {growth['n']['measured']:.4g} |" in report
    assert (tmp_path / "out" / "table1.png").stat().st_size > 10_000


def test_sizes_that_are_too_small_are_refused(table1, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["table1.py", "--max_length", "16"])
    with pytest.raises(SystemExit, match="max_length"):
        table1.main()
