"""Faster beam search: oneDNN matrix products on CPU, CUDA graphs on GPU, a two-stage top-k."""

import threading
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


Projection = Callable[[torch.Tensor], torch.Tensor]

# Plain steps that take about as long as capturing a graph: a first run, the recording, and instantiating the graph.
_STEPS_WORTH_A_CAPTURE = 4

# Columns of a group in the two-stage top-k.
_GROUP_SIZE = 32


def joined_projection(linears: list[nn.Linear], activation: nn.Module | None = None) -> Projection:
    """Join linear layers of the same input into one, outputs concatenated, and append an activation.

    Weights on CPU are packed for oneDNN where possible, which multiplies few rows up to five times as fast. Layers
    other than plain `nn.Linear`, such as adapters or quantized layers, are called one by one.
    """
    product: Projection | None
    if all(_is_plain(linear) for linear in linears):
        weight = _concatenated([linear.weight for linear in linears])  # [outputs, inputs]
        bias = None if linears[0].bias is None else _concatenated([linear.bias for linear in linears])
        has_relu = isinstance(activation, nn.ReLU)
        product = packed_product(weight, bias, has_relu)
        if product is None:
            product = lambda x: F.linear(x, weight, bias)  # noqa: E731 - as the other products
        elif has_relu:
            return product
    else:
        modules = list(linears)
        product = lambda x: torch.cat([module(x) for module in modules], dim=-1)  # noqa: E731
    return product if activation is None else lambda x: activation(product(x))


def packed_product(weight: torch.Tensor, bias: torch.Tensor | None, has_relu: bool = False) -> Projection | None:
    """Linear layer with its weight packed once for oneDNN, and optionally a ReLU; None if not supported."""
    operators = torch.ops.mkldnn
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")  # private, and may be absent
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available() or torch.is_autocast_enabled("cpu"):
        return None
    if not all(hasattr(operators, name) for name in names):
        return None
    if weight.dtype != torch.float32 and not (weight.dtype == torch.bfloat16 and operators._is_mkldnn_bf16_supported()):
        return None
    packed = operators._reorder_linear_weight(weight.detach(), None)
    activation = "relu" if has_relu else "none"
    return lambda x: operators._linear_pointwise(x, packed, bias, activation, [], "")


def _is_plain(linear: nn.Module) -> bool:
    """Whether a layer is an `nn.Linear` with dense weights; quantization may replace the tensors alone."""
    dense = all(type(parameter) in (nn.Parameter, torch.Tensor) for parameter in linear.parameters())
    return dense and type(linear) is nn.Linear


def _concatenated(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def best_tokens(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` most probable tokens of each row, best first.

    Two-stage top-k: the k largest logits lie in the k groups with the largest maxima.

    Args:
        logits: `[rows, vocabulary]`
        count: Number of tokens, at most the whole vocabulary.

    Returns:
        Their log-probabilities, and the tokens: `[rows, count]` each.
    """
    logits = logits.float()  # on CPU also faster to compare
    rows, vocabulary = logits.shape
    count = min(count, vocabulary)
    if vocabulary < 4 * count * _GROUP_SIZE:
        values, tokens = logits.topk(count)
    else:
        grouped = vocabulary - vocabulary % _GROUP_SIZE
        groups = logits[:, :grouped].unflatten(-1, (-1, _GROUP_SIZE)).amax(-1).topk(count).indices  # [rows, count]
        columns = torch.arange(_GROUP_SIZE, device=logits.device)
        tail = torch.arange(grouped, vocabulary, device=logits.device).expand(rows, -1)
        columns = torch.cat(((groups.unsqueeze(-1) * _GROUP_SIZE + columns).flatten(1), tail), dim=1)
        values, order = logits.gather(1, columns).topk(count)
        tokens = columns.gather(1, order)
    # log p = logit - logsumexp, and logsumexp follows from the largest probability, which is never near 0.
    largest = logits.softmax(-1).gather(1, tokens[:, :1])
    return values - values[:, :1] + largest.log(), tokens


class GraphMemory:
    """Memory pool and capture stream of the CUDA graphs that one stream replays.

    Graphs of one pool share the memory of their intermediate results. That is safe, because replays on one stream do
    not overlap, and inputs and outputs lie outside the pool. A pool cannot be used again after its last graph is
    deleted, so an anchor, a graph that is never replayed, keeps it alive.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        # One stream for all captures, because CUDA libraries keep a workspace for every stream.
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.lock = threading.Lock()
        self.anchor, _ = self.capture(lambda: torch.zeros(1, device=device))

    def capture(self, run: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """Capture `run`; returns its graph, and the tensor to which each replay writes its result."""
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self.stream.device)
        with self.lock, torch.cuda.stream(self.stream):
            self.stream.wait_stream(current)
            output = torch.empty_like(run())  # libraries allocate in a first run, which must not be captured
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
    """The `GraphMemory` of the current stream of `device`."""
    stream = torch.cuda.current_stream(device)
    if stream not in _MEMORY:
        _MEMORY[stream] = GraphMemory(device)
    return _MEMORY[stream]


class StepGraph:
    """Replays a step as one CUDA graph, because launching its small kernels takes longer than running them.

    A graph has fixed shapes, and is captured again for other shapes.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, int] | None = None
        self.inputs: tuple[torch.Tensor, ...]
        self.graph: torch.cuda.CUDAGraph
        self.output: torch.Tensor

    def pays(self, shape: tuple[int, int], steps: int) -> bool:
        """Whether a graph of this shape exists, or a new one would be replayed for enough `steps`."""
        return shape == self.shape or steps >= _STEPS_WORTH_A_CAPTURE

    def replay(
        self, shape: tuple[int, int], run: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """The output of `run(*inputs)`, which the next replay overwrites.

        Args:
            shape: Calls of the same shape run the same kernels, and differ only in the values of `inputs`.
            run: The step.
            inputs: Tensors on the device.
        """
        if shape != self.shape:
            static = tuple(tensor.clone() for tensor in inputs)
            # The previous graph is deleted only after the capture.
            self.graph, self.output = graph_memory(inputs[0].device).capture(lambda: run(*static))
            self.shape, self.inputs = shape, static
        for target, tensor in zip(self.inputs, inputs, strict=True):
            target.copy_(tensor)
        self.graph.replay()
        return self.output
