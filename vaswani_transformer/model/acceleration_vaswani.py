"""Faster products and steps for beam search: weights packed for oneDNN on CPU, CUDA graphs on NVIDIA's GPUs."""

import threading
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


Projection = Callable[[torch.Tensor], torch.Tensor]

# A capture runs a step, records it and instantiates the graph, which takes about as long as so many plain steps.
_STEPS_WORTH_A_CAPTURE = 4


def joined_projection(linears: list[nn.Linear], activation: nn.Module | None = None) -> Projection:
    """One product for several linear layers of the same input, whose outputs stand side by side, and an activation.

    On CPU the weights are repacked once for oneDNN, which then multiplies few rows up to five times as fast. Layers
    that are more than plain `nn.Linear`, such as adapters or quantised ones, are called as they are.
    """
    if not all(_is_plain(linear) for linear in linears):
        modules = list(linears)
        return _activated(lambda x: torch.cat([module(x) for module in modules], dim=-1), activation)
    weight = _joined([linear.weight for linear in linears])  # [outputs, inputs]
    bias = None if linears[0].bias is None else _joined([linear.bias for linear in linears])
    if _onednn_multiplies(weight):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        if isinstance(activation, nn.ReLU):
            return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "relu", [], "")
        return _activated(lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], ""), activation)
    return _activated(lambda x: F.linear(x, weight, bias), activation)


def _is_plain(linear: nn.Module) -> bool:
    """Whether a layer is no more than its dense weights; quantisation may replace the tensors and leave the layer."""
    dense = all(type(parameter) in (nn.Parameter, torch.Tensor) for parameter in linear.parameters())
    return dense and type(linear) is nn.Linear


def _activated(product: Projection, activation: nn.Module | None) -> Projection:
    return product if activation is None else lambda x: activation(product(x))


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _onednn_multiplies(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available() or torch.is_autocast_enabled("cpu"):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


class GraphMemory:
    """The pool of memory, and the stream for captures, of the CUDA graphs that one stream replays.

    Graphs of one pool use the same memory for their intermediate results. That is safe because replays on one stream
    do not overlap, and inputs and output lie outside the pool. A pool cannot be used again after its last graph has
    died, so an anchor, a graph that is never replayed, keeps it alive.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        # One stream for all captures, as the libraries keep memory for each stream that they have seen.
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.lock = threading.Lock()
        self.anchor, _ = self.capture(lambda: torch.zeros(1, device=device))

    def capture(self, run: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """A graph of `run`, and the tensor to which each replay writes the result."""
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self.stream.device)
        with self.lock, torch.cuda.stream(self.stream):
            self.stream.wait_stream(current)
            output = torch.empty_like(run())  # the libraries allocate at first, which must not be captured
            # Other threads, such as those that load data, may use the device meanwhile.
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                output.copy_(run())
            finally:
                graph.capture_end()
            current.wait_stream(self.stream)
        return graph, output


_MEMORY: dict[torch.cuda.Stream, GraphMemory] = {}  # for the life of the process; usually one for each device


def graph_memory(device: torch.device) -> GraphMemory:
    """The memory for graphs that the current stream of `device` replays."""
    stream = torch.cuda.current_stream(device)
    if stream not in _MEMORY:
        _MEMORY[stream] = GraphMemory(device)
    return _MEMORY[stream]


class StepGraph:
    """Replays a step as one CUDA graph, since launching its small kernels one by one takes longer than they do.

    A graph has fixed shapes, and is captured anew for other shapes.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, int] | None = None
        self.inputs: tuple[torch.Tensor, ...]
        self.graph: torch.cuda.CUDAGraph
        self.output: torch.Tensor

    def pays(self, shape: tuple[int, int], steps: int) -> bool:
        """Whether there is a graph of this shape, or a new one can serve enough of the next `steps`."""
        return shape == self.shape or steps >= _STEPS_WORTH_A_CAPTURE

    def replay(
        self, shape: tuple[int, int], run: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """The output of `run(*inputs)`, which the next replay overwrites.

        Args:
            shape: Two calls of the same shape run the same kernels, and differ in the values of `inputs` alone.
            run: The step.
            inputs: Tensors on the device.
        """
        if shape != self.shape:
            fixed = tuple(given.clone() for given in inputs)
            # The former graph lives on until the new one is there.
            self.graph, self.output = graph_memory(inputs[0].device).capture(lambda: run(*fixed))
            self.shape, self.inputs = shape, fixed
        for place, given in zip(self.inputs, inputs, strict=True):
            place.copy_(given)
        self.graph.replay()
        return self.output
