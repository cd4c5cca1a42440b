"""Packed weights and CUDA graphs compute what the plain modules compute."""

from types import SimpleNamespace

import pytest
import torch
from cuda_stand_in import StandInForCuda
from models import SOURCES, as_batch
from torch import nn

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.model import step_decoder_vaswani
from vaswani_transformer.model.beam_search_vaswani import two_stage_topk
from vaswani_transformer.model.step_decoder_vaswani import GraphMemory, IncrementalDecoder, joined_projection


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandInForCuda:
    """Beam search replays its steps, although there is no GPU."""
    start = IncrementalDecoder.__init__

    def with_graph(decoder: IncrementalDecoder, *args: object) -> None:
        start(decoder, *args)
        decoder.graph = step_decoder_vaswani.StepGraph()

    monkeypatch.setattr(IncrementalDecoder, "__init__", with_graph)
    monkeypatch.setattr(step_decoder_vaswani, "_MEMORY", {})
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)  # on a GPU no weights are packed
    return StandInForCuda(monkeypatch)


def length_options(tokens: int) -> dict[str, int]:
    """Sentences end at many lengths up to `tokens`, and do not repeat themselves."""
    return {"min_new_tokens": tokens // 2, "max_new_tokens": tokens, "no_repeat_ngram_size": 2}


def search(
    model: VaswaniForConditionalGeneration, sources: list[list[int]], tokens: int, **more: object
) -> torch.Tensor:
    return model.generate(as_batch(sources), **length_options(tokens), **more)


@pytest.mark.parametrize("tokens", [30, 80])
@pytest.mark.parametrize("sources", [SOURCES[:1], SOURCES[:2], SOURCES], ids=["one", "two", "seven"])
def test_replayed_steps_find_what_forward_finds(talkative_model, cuda, sources, tokens):
    expected = search(talkative_model, sources, tokens, use_cache=False)
    assert not cuda.graphs
    for _ in range(2):
        assert torch.equal(search(talkative_model, sources, tokens), expected)
    assert sum(cuda.replays) > expected.shape[1]  # most steps of two batches
    assert cuda.replays[0] == 0  # the anchor


def test_prefixes_and_neighbourhoods_are_replayed(talkative_model, cuda):
    talkative_model.config.attention_neighborhood = 6
    prefix = torch.tensor([[0, 9, 4, 8, 2, 11, 12]] * 2)
    options = {"decoder_input_ids": prefix, "num_beams": 3}
    expected = search(talkative_model, SOURCES[:2], 70, use_cache=False, **options)
    assert torch.equal(search(talkative_model, SOURCES[:2], 70, **options), expected)
    assert sum(cuda.replays) > 30


def test_memory_of_graphs_does_not_grow_with_each_batch(talkative_model, cuda):
    search(talkative_model, SOURCES, 70)
    reserved, stream = dict(cuda.allocator.reserved), len(step_decoder_vaswani._MEMORY)
    assert cuda.allocator.use_count == {1: 1}  # the anchor's; those of the search have died
    for _ in range(3):
        search(talkative_model, SOURCES, 70)
    assert cuda.allocator.reserved == reserved
    assert cuda.allocator.use_count == {1: 1}
    assert len(step_decoder_vaswani._MEMORY) == stream == 1


@pytest.mark.parametrize("prefix", [1, 5])
@pytest.mark.parametrize(("tokens", "captures"), [(3, 0), (33, 1), (36, 1), (37, 2), (140, 5)])
def test_no_graph_is_captured_for_a_few_steps(model, cuda, tokens, captures, prefix):
    """The first of so many tokens comes from the prefix, and a block has 32 steps."""
    sentence = {"decoder_input_ids": torch.arange(3, 3 + prefix).unsqueeze(0).index_fill(1, torch.tensor(0), 0)}
    model.generate(torch.tensor([[7, 8, 1]]), max_new_tokens=tokens, min_new_tokens=tokens, **sentence)
    replays = cuda.replays[1:]
    assert len(replays) == captures
    assert all(served >= 4 for served in replays)
    assert sum(replays) >= tokens - 1 - 3


@pytest.fixture
def captures(monkeypatch):
    """A list that gets an entry for each CUDA graph."""
    found, capture = [], GraphMemory.capture
    monkeypatch.setattr(GraphMemory, "capture", lambda memory, run: (found.append(memory), capture(memory, run))[1])
    return found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_search_on_a_gpu_equals_that_on_the_cpu(talkative_model, captures):
    expected = search(talkative_model, SOURCES, 80)
    talkative_model.cuda()
    for _ in range(2):
        found = talkative_model.generate(as_batch(SOURCES).cuda(), **length_options(80))
        assert torch.equal(found.cpu(), expected)
    assert len(captures) > 3  # the anchor's is one


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_a_replayed_search_in_half_precision_is_the_same_without_a_graph(
    talkative_model, captures, monkeypatch, precision
):
    talkative_model.to("cuda", precision)
    found = talkative_model.generate(as_batch(SOURCES).cuda(), **length_options(80))
    assert len(captures) > 2
    monkeypatch.setattr(step_decoder_vaswani, "StepGraph", lambda: None)
    assert torch.equal(talkative_model.generate(as_batch(SOURCES).cuda(), **length_options(80)), found)


class Halves(torch.Tensor):
    """A tensor subclass that stands for quantised weights: an operation sees twice what it stores."""

    @staticmethod
    def __new__(cls, stored: torch.Tensor) -> "Halves":
        return torch.Tensor._make_wrapper_subclass(cls, stored.shape, dtype=stored.dtype)

    def __init__(self, stored: torch.Tensor) -> None:
        self.stored = stored

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [2 * arg.stored if isinstance(arg, Halves) else arg for arg in args]
        result = func(*plain, **(kwargs or {}))
        return Halves(result / 2) if func is torch.ops.aten.detach.default else result


def test_layers_with_quantised_weights_are_called():
    """Quantisation replaces the weights and leaves `nn.Linear`."""
    linears = [nn.Linear(8, 5), nn.Linear(8, 3)]
    x = torch.randn(2, 4, 8)
    expected = torch.cat([linear(x) for linear in linears], dim=-1)
    linears[0].weight = nn.Parameter(Halves(linears[0].weight.detach() / 2), requires_grad=False)
    assert type(linears[0]) is nn.Linear
    with torch.no_grad():
        assert torch.allclose(joined_projection(linears)(x), expected, atol=1e-6)


@pytest.mark.parametrize("columns", [7, 4096, 5003])
def test_two_stages_find_what_topk_finds(columns):
    values = torch.randn(3, columns)
    values[0, -1], values[1, 0] = 100.0, 90.0
    best, places = two_stage_topk(values, 8)
    expected = values.topk(min(8, columns))
    assert torch.equal(best, expected.values)
    assert torch.equal(places, expected.indices)


@pytest.mark.parametrize("missing", ["library", "operators", "nothing"])
@pytest.mark.parametrize("activation", [None, nn.ReLU(), nn.GELU()], ids=str)
def test_products_do_without_onednn(monkeypatch, missing, activation):
    """A build of torch may lack the library, and a release may lack its private operators."""
    linears, x = [nn.Linear(8, 5), nn.Linear(8, 3)], torch.randn(2, 4, 8)
    if missing == "library":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    if missing == "operators":
        monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    is_packed = step_decoder_vaswani.packed_product(linears[0].weight, linears[0].bias) is not None
    assert is_packed == (missing == "nothing" and torch.backends.mkldnn.is_available())
    expected = torch.cat([linear(x) for linear in linears], dim=-1)
    with torch.no_grad():
        found = joined_projection(linears, activation)(x)
    torch.testing.assert_close(found, expected if activation is None else activation(expected))
