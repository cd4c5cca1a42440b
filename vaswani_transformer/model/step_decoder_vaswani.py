"""`StepDecoder`, the interface between beam search and a model, and its implementations.

`IncrementalDecoder`, the fast one, computes the decoder of section 3 from its weights, one position at a time; oneDNN
matrix products on CPU and CUDA graphs on GPU make it faster still. `ForwardDecoder` calls the model's `forward`. Hooks,
adapters that replace inputs, and requested attentions need it.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationConfig, PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from .attention_vaswani import VECTOR, SourceTokens
from .keywords_vaswani import CACHE


# The classes of these modules are in modeling_vaswani.py, which imports this file.
Attention = Any
DecoderLayer = Any
Decoder = Any

Projection = Callable[[torch.Tensor], torch.Tensor]

# Steps in a block: the tree's initial capacity, and the steps that one CUDA graph covers.
BLOCK = 32

# Logits computed at once: as many as fit the cache of a CPU, or the memory of a GPU.
_LOGITS_ON_CPU, _LOGITS_ON_GPU = 5_000_000, 200_000_000

# On a CPU, the number of sentences is rounded up to this many significant binary digits once some are dropped: oneDNN
# makes kernels for each new number of rows.
_DIGITS = 2

# Plain steps that take about as long as capturing a graph: a first run, the recording, and instantiating the graph.
_STEPS_WORTH_A_CAPTURE = 4


class StepDecoder(Protocol):
    """Computes the next token's logits of all live hypotheses, step by step.

    Logits are returned in one or more chunks `[rows, vocabulary]`, each of whole sentences, computed lazily, so that a
    chunk stays in the cache of a CPU. Concatenated, they have one row for each hypothesis, sentence by sentence. The
    caller reads them once, before the next call.
    """

    def prefill(self, tokens: torch.Tensor) -> Iterable[torch.Tensor]:
        """Feed the prefixes.

        Args:
            tokens: `[sentences, prefix]`, the same for all hypotheses of a sentence.

        Returns:
            Logits of one hypothesis for each sentence.
        """

    def step(self, tokens: torch.Tensor, parents: torch.Tensor) -> Iterable[torch.Tensor]:
        """Feed the last token of each hypothesis.

        Args:
            tokens: `[sentences, num_beams]`
            parents: `[sentences, num_beams]`, the hypothesis of the previous step that each one extends.

        Returns:
            Logits of `num_beams` hypotheses for each sentence.
        """

    def sentences_for(self, remaining: int) -> int:
        """Number of sentences, at least `remaining`, to continue with if only these are not done."""

    def select(self, order: list[int]) -> None:
        """Continue with these sentences only, in this order; none moves to a larger index."""


class ForwardDecoder:
    """Decodes by calling the model's `forward`.

    Each step reorders the cache or, without a cache, recomputes all positions. It never drops sentences, because an
    adapter's additional inputs may belong to the whole batch.

    Args:
        model: The model.
        model_kwargs: Arguments of its `forward`, `[sentences * num_beams, ...]` each.
        config: The generation configuration.
        outputs: Receives the model's output of each step, with the attentions and hidden states that `config` requests.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        model_kwargs: Mapping[str, Any],
        config: GenerationConfig,
        outputs: list[Seq2SeqLMOutput] | None = None,
    ) -> None:
        requests = ("output_attentions", "output_hidden_states")
        set_here = {CACHE, "use_cache", "logits_to_keep", "decoder_attention_mask", *requests}
        self.model, self.num_beams, self.outputs = model, config.num_beams, outputs
        self.inputs = {name: value for name, value in model_kwargs.items() if name not in set_here}
        self.mask = model_kwargs.get("decoder_attention_mask")  # [sentences * num_beams, prefix]
        self.cache = model_kwargs.get(CACHE) if config.use_cache else None
        self.requests = {name: outputs is not None and getattr(config, name) for name in requests}

    def prefill(self, tokens: torch.Tensor) -> Iterable[torch.Tensor]:
        self.tokens = tokens.unsqueeze(1).expand(-1, self.num_beams, -1)  # [sentences, num_beams, length]
        return [self._run(new=tokens.shape[1], is_first=True)[:: self.num_beams]]

    def step(self, tokens: torch.Tensor, parents: torch.Tensor) -> Iterable[torch.Tensor]:
        extended = self.tokens.gather(1, parents.unsqueeze(-1).expand_as(self.tokens))
        self.tokens = torch.cat((extended, tokens.unsqueeze(-1)), dim=-1)
        if self.cache is not None:
            sentences = torch.arange(len(parents), device=parents.device).unsqueeze(-1)
            self.cache.reorder_cache((parents + self.num_beams * sentences).flatten())
        return [self._run(new=1, is_first=self.cache is None)]

    def sentences_for(self, remaining: int) -> int:
        return len(self.tokens)

    def select(self, order: list[int]) -> None:
        """Never called, since `sentences_for` keeps all sentences."""

    def _run(self, new: int, is_first: bool) -> torch.Tensor:
        """Logits `[sentences * num_beams, vocabulary]` after the last of the `new` tokens."""
        tokens = self.tokens.flatten(0, 1)
        if self.mask is not None:  # [sentences * num_beams, length]
            self.mask = F.pad(self.mask, (0, tokens.shape[1] - self.mask.shape[1]), value=1)
        # Adapters override this method to pass additional inputs to the decoder.
        inputs = self.model.prepare_inputs_for_generation(
            tokens,
            next_sequence_length=None if self.cache is None else new,
            **{CACHE: self.cache},
            is_first_iteration=is_first,
            **self.inputs,
        )
        # Replaces the four-dimensional mask of a static cache, which does not tell positions after left padding.
        inputs["decoder_attention_mask"] = self.mask
        inputs["use_cache"] = self.cache is not None
        output = self.model(**inputs, **self.requests, return_dict=True, logits_to_keep=1)
        if self.cache is not None:
            self.cache = output[CACHE]
        if self.outputs is not None:
            self.outputs.append(output)
        return output.logits[:, -1]


class IncrementalDecoder:
    """Decodes one position at a time, for all hypotheses of many sentences.

    The keys and values of a sentence form a tree with one node for each hypothesis and position. A hypothesis attends
    to its ancestors, so that nothing is copied when hypotheses branch or are dropped. A source's keys and values exist
    once for all hypotheses of its sentence, which share each matrix product.

    Args:
        decoder: The model's decoder.
        lm_head: The projection to logits.
        encoded: `[sentences, source, d_model]`, the encoder's output.
        source_mask: `[sentences, source]`, 1 for tokens, 0 for padding; or None.
        num_beams: Hypotheses of a sentence.
        prefix_length: Tokens that every hypothesis starts with.
        max_length: Positions of the longest possible hypothesis, its prefix included.

    After `select`, only the first `sentences` rows of each tensor are in use.
    """

    def __init__(
        self,
        decoder: Decoder,
        lm_head: nn.Linear,
        encoded: torch.Tensor,
        source_mask: torch.Tensor | None,
        num_beams: int,
        prefix_length: int,
        max_length: int,
    ) -> None:
        self.decoder, self.num_beams, self.sentences = decoder, num_beams, encoded.shape[0]
        self.max_length, self.prefix_length = max_length, prefix_length
        neighborhood = decoder.config.attention_neighborhood
        self.reach = None if neighborhood is None else neighborhood // 2
        self.lm_head, self.vocabulary = joined_projection([lm_head]), decoder.config.output_vocab_size
        # Hypotheses share the nodes of their prefix, one for each position; after it each has its own nodes.
        self.nodes = prefix_length + num_beams * min(BLOCK, max_length - prefix_length)
        self.lowest = torch.finfo(encoded.dtype).min
        positions = torch.arange(max_length - 1, device=encoded.device)[None]  # the last token is never fed
        self.encodings = decoder.embed_positions(positions, encoded.dtype, max_length - 1)  # [1, length, d_model]
        self.mask = encoded.new_full((self.sentences, 1, num_beams, self.nodes), self.lowest)  # 0 at ancestors
        self.source_mask = None
        tokens = SourceTokens(self.mask.new_ones(encoded.shape[:2]) if source_mask is None else source_mask)
        if len(tokens.indices) < tokens.mask.numel():
            padding = tokens.mask[:, None, None, :].logical_not()  # [sentences, 1, 1, source]
            none = padding.all(-1, keepdim=True)  # stays 0: under autocast, `lowest` rounds to -inf, and softmax to NaN
            self.source_mask = encoded.new_zeros(padding.shape).masked_fill_(padding & ~none, self.lowest)
        self.layers = [IncrementalLayer(layer, encoded, tokens, self.nodes) for layer in decoder.layers]
        self.graph = StepGraph() if encoded.is_cuda else None
        self.length = self.end = 0  # positions, and nodes, in the tree

    def prefill(self, tokens: torch.Tensor) -> Iterable[torch.Tensor]:
        length = tokens.shape[1]
        nodes = torch.arange(length, device=tokens.device)
        causal = self.mask.new_full((length, length), self.lowest).triu_(1)
        if self.reach is not None:
            causal += self.mask.new_full((length, length), self.lowest).tril_(-self.reach - 1)
        self.mask[..., :length] = 0
        self.length = self.end = length
        return self._logits(self._run(tokens, self.encodings[:, :length], nodes, slice(length), causal)[:, -1:])

    def step(self, tokens: torch.Tensor, parents: torch.Tensor) -> Iterable[torch.Tensor]:
        start, end = self.end, self.end + self.num_beams
        if end > self.nodes:
            self._grow()
        mask = self.mask[: self.sentences]  # [sentences, 1, num_beams, nodes]
        ancestors = mask[..., :start].gather(2, parents[:, None, :, None].expand(-1, -1, -1, start))
        mask[..., :start] = ancestors
        mask[:, 0, :, start:end].diagonal(dim1=1, dim2=2).zero_()  # every hypothesis sees itself
        first = 0  # the first node that the position sees, or the first in its neighbourhood (4)
        if self.reach is not None:
            leftmost = max(self.length - self.reach, 0)
            prefix = min(leftmost, self.prefix_length)
            first = prefix + self.num_beams * (leftmost - prefix)
            mask[..., :first] = self.lowest
        nodes = torch.arange(start, end, device=tokens.device)
        self.length, self.end = self.length + 1, end
        encoding = self.encodings[:, self.length - 1 : self.length]
        last, steps = self._block_end()
        shape = (self.sentences, last)
        if self.graph is None or not self.graph.pays(shape, steps):
            seen = slice(first, min(end + (first - end) % VECTOR, self.nodes))  # nodes after `end` are masked
            hidden = self._run(tokens, encoding, nodes, seen, mask[..., seen])
        else:
            run = partial(self._run, seen=slice(last), mask=mask[..., :last])
            hidden = self.graph.replay(shape, run, (tokens, encoding, nodes))
        return self._logits(hidden)

    def sentences_for(self, remaining: int) -> int:
        if self.graph is not None:  # capturing a new one takes as long as several steps
            return remaining if remaining <= self.sentences // 2 else self.sentences
        unit = 1 << max(0, remaining.bit_length() - _DIGITS)
        return min(-(-remaining // unit) * unit, self.sentences)

    def select(self, order: list[int]) -> None:
        self.sentences = len(order)
        moved = [(origin, target) for target, origin in enumerate(order) if origin != target]
        if moved:
            origins, targets = torch.tensor(moved, device=self.mask.device).unbind(-1)
            for layer in self.layers:
                layer.self_attention.copy(origins, targets)
                layer.source_attention.copy(origins, targets)
            self.mask[targets] = self.mask[origins]
            if self.source_mask is not None:
                self.source_mask[targets] = self.source_mask[origins]

    def _logits(self, hidden: torch.Tensor) -> Iterable[torch.Tensor]:
        """Logits of `hidden` `[sentences, hypotheses, d_model]`, in chunks that fit the cache of a CPU."""
        at_once = _LOGITS_ON_CPU if hidden.device.type == "cpu" else _LOGITS_ON_GPU
        for sentences in hidden.chunk(hidden.shape[:2].numel() * self.vocabulary // at_once + 1):
            yield self.lm_head(sentences.flatten(0, 1))

    def _block_end(self) -> tuple[int, int]:
        """Number of nodes at the end of the current block of steps, and of steps left in it, this one included."""
        block = BLOCK * self.num_beams
        last = min(self.prefix_length + -(-(self.end - self.prefix_length) // block) * block, self.nodes)
        return last, min((last - self.end) // self.num_beams + 1, self.max_length - self.length)

    def _grow(self) -> None:
        """Double the number of nodes. Enough for `max_length` at once would take several times the memory."""
        more = self.nodes - self.prefix_length  # always whole blocks of steps
        for layer in self.layers:
            layer.self_attention.grow(self.sentences, more)
        self.mask = F.pad(self.mask[: self.sentences], (0, more), value=self.lowest)
        self.nodes += more

    def _run(
        self, tokens: torch.Tensor, positions: torch.Tensor, nodes: torch.Tensor, seen: slice, mask: torch.Tensor
    ) -> torch.Tensor:
        """The last layer's output `[sentences, rows, d_model]` for `tokens` `[sentences, rows]`."""
        hidden = self.decoder.embed(tokens) + positions
        source_mask = None if self.source_mask is None else self.source_mask[: self.sentences]
        for layer in self.layers:
            hidden = layer(hidden, nodes, seen, mask, source_mask)
        return hidden


class IncrementalLayer:
    """One decoder layer (3.1); see `VaswaniDecoderLayer`, whose residuals it calls."""

    def __init__(self, layer: DecoderLayer, encoded: torch.Tensor, source: SourceTokens, nodes: int) -> None:
        self.layer = layer
        self.self_attention = SelfAttentionTree(layer.self_attn, encoded, nodes)
        self.source_attention = SourceAttention(layer.encoder_attn, encoded, source)
        self.fc1 = joined_projection([layer.feed_forward.fc1], layer.feed_forward.activation)
        self.fc2 = joined_projection([layer.feed_forward.fc2])

    def __call__(
        self,
        hidden: torch.Tensor,
        nodes: torch.Tensor,
        seen: slice,
        mask: torch.Tensor,
        source_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        layer = self.layer
        hidden = layer.self_attn_residual(hidden, self.self_attention(hidden, nodes, seen, mask))
        hidden = layer.encoder_attn_residual(hidden, self.source_attention(hidden, source_mask))
        return layer.feed_forward_residual(hidden, self.fc2(self.fc1(hidden)))  # [sentences, rows, d_model]


class IncrementalAttention:
    """Multi-head attention (3.2.2) of new positions to stored keys and values.

    Args:
        attention: The model's attention.
        keys: `[sentences, heads, nodes, d_k]`
        values: `[sentences, heads, nodes, d_v]`
    """

    def __init__(self, attention: Attention, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.attention, self.keys, self.values = attention, keys, values
        self.output = joined_projection([attention.out_proj])

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Equation 1, and the output projection: `[sentences, rows, d_model]`.

        The `query` is `[sentences, rows, heads * d_k]`; the `mask` is added to scores, `[sentences, 1, rows, nodes]`.
        """
        query = self.attention.split_heads(query, self.attention.d_k)  # [sentences, heads, rows, d_k]
        scores = torch.matmul(query, keys.transpose(2, 3)).mul_(self.attention.scaling)
        if mask is not None:
            scores += mask
        attended = torch.matmul(F.softmax(scores, dim=-1), values)  # [sentences, heads, rows, d_v]
        return self.output(attended.transpose(1, 2).flatten(2))

    def copy(self, origins: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy the keys and values of sentences `origins` to sentences `targets`, `[copied]` each."""
        for stored in (self.keys, self.values):
            stored[targets] = stored[origins]


class SelfAttentionTree(IncrementalAttention):
    """Masked self-attention (3.2.3) to a tree of keys and values, at first with `nodes` for each `encoded` sentence."""

    def __init__(self, attention: Attention, encoded: torch.Tensor, nodes: int) -> None:
        # Zeros, since a CUDA graph attends to nodes that are not yet written, and 0 * NaN is NaN.
        sizes = (encoded.shape[0], attention.num_heads, nodes)
        super().__init__(attention, encoded.new_zeros(*sizes, attention.d_k), encoded.new_zeros(*sizes, attention.d_v))
        self.project = joined_projection([attention.q_proj, attention.k_proj, attention.v_proj])

    def __call__(self, hidden: torch.Tensor, nodes: torch.Tensor, seen: slice, mask: torch.Tensor) -> torch.Tensor:
        """Store `hidden` `[sentences, rows, d_model]` at `nodes` `[rows]`, and attend to the nodes that are `seen`."""
        sentences, attention = hidden.shape[0], self.attention
        sizes = [attention.num_heads * width for width in (attention.d_k, attention.d_k, attention.d_v)]
        query, *new = self.project(hidden).split(sizes, dim=-1)
        for stored, states in zip((self.keys, self.values), new, strict=True):
            states = attention.split_heads(states, stored.shape[-1])  # [sentences, heads, rows, d_k or d_v]
            stored[:sentences].index_copy_(2, nodes, states.to(stored.dtype))  # autocast computes in another dtype
        return self.attend(query, self.keys[:sentences, :, seen], self.values[:sentences, :, seen], mask)

    def grow(self, sentences: int, nodes: int) -> None:
        """Allocate `nodes` more nodes; keep the first `sentences` only."""
        self.keys = F.pad(self.keys[:sentences], (0, 0, 0, nodes))
        self.values = F.pad(self.values[:sentences], (0, 0, 0, nodes))


class SourceAttention(IncrementalAttention):
    """Encoder-decoder attention (3.2.3); a source's keys and values are computed once, for all its hypotheses.

    Attention to a source that is all padding gives zero.
    """

    def __init__(self, attention: Attention, encoded: torch.Tensor, source: SourceTokens) -> None:
        packed = source.pack(encoded)  # [1, tokens, d_model]
        both = attention.keys_and_values(packed, packed, None)  # [1, heads, tokens, d_k or d_v] each
        keys, values = (source.unpack(each.transpose(1, 2)).transpose(1, 2).contiguous() for each in both)
        super().__init__(attention, keys, values)
        self.project = joined_projection([attention.q_proj])

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        sentences = hidden.shape[0]
        return self.attend(self.project(hidden), self.keys[:sentences], self.values[:sentences], mask)


def joined_projection(linears: list[nn.Linear], activation: nn.Module | None = None) -> Projection:
    """Join linear layers of the same input into one, outputs concatenated, and append an activation.

    Weights on CPU are packed for oneDNN where possible, which is up to five times as fast on few rows. Layers
    other than plain `nn.Linear`, such as adapters or quantized layers, are called one by one.
    """
    product: Projection
    # Quantization may replace the parameters of a plain nn.Linear.
    tensors = [tensor for linear in linears for tensor in linear.parameters()]
    if {*map(type, linears)} == {nn.Linear} and {*map(type, tensors)} <= {nn.Parameter, torch.Tensor}:
        weight: torch.Tensor = linears[0].weight  # [outputs, inputs]
        bias: torch.Tensor | None = linears[0].bias
        if len(linears) > 1:
            weight = torch.cat([linear.weight for linear in linears])
            bias = None if bias is None else torch.cat([linear.bias for linear in linears])
        has_relu = isinstance(activation, nn.ReLU)
        packed = packed_product(weight, bias, has_relu)
        if packed is not None and has_relu:
            return packed
        product = packed or partial(F.linear, weight=weight, bias=bias)
    else:
        product = partial(_concatenated_products, linears)
    return product if activation is None else lambda x: activation(product(x))


def _concatenated_products(linears: list[nn.Linear], hidden: torch.Tensor) -> torch.Tensor:
    return torch.cat([linear(hidden) for linear in linears], dim=-1)


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


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks, or a `forward` set on the instance, change what a module computes."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    # transformers never removes its hooks that record attentions; they do nothing unless attentions are requested.
    if any(getattr(hook, "__module__", None) != "transformers.utils.output_capturing" for hook in hooks):
        return True
    forward = vars(module).get("forward")
    if getattr(forward, "__module__", None) == "accelerate.utils.operations":  # its wrapper for mixed precision
        forward = inspect.unwrap(forward)
    original = type(module).forward  # accelerate, on removing its wrapper, restores it without the decorators
    return forward is not None and getattr(forward, "__func__", forward) not in (original, inspect.unwrap(original))
