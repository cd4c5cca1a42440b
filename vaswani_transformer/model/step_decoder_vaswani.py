"""The decoder of section 3, one position at a time, for all hypotheses of many sentences: what beam search runs on.

The keys and values of a sentence lie in one tree, a node for each hypothesis and position, and a hypothesis attends to
its own ancestors in it. So they are not copied when hypotheses are dropped or branch, the source's keys and values are
there once for all hypotheses of a sentence, and each product has as many rows as the sentence has hypotheses.

Layers and linear maps are computed from their weights, so hooks on layers and attentions are not called. Where the
modules have to be called, `ForwardDecoder` does so.
"""

import inspect
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationConfig

from .acceleration_vaswani import StepGraph, joined_projection


# Steps that there is room for at first, and by which a CUDA graph looks ahead.
BLOCK = 32


def calls_more_than_its_class(module: nn.Module) -> bool:
    """Whether a hook, or a `forward` of its own, changes what a module computes."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    # The hooks by which transformers records attentions stay, and do nothing until they are asked for.
    if any(getattr(hook, "__module__", None) != "transformers.utils.output_capturing" for hook in hooks):
        return True
    forward = vars(module).get("forward")
    if getattr(forward, "__module__", None) == "accelerate.utils.operations":  # mixed precision around the former one
        forward = vars(module).get("_original_forward", forward)
    own = type(module).forward  # which accelerate, when it takes that away, puts back without its decorators
    return forward is not None and getattr(forward, "__func__", None) not in (own, inspect.unwrap(own))


class IncrementalAttention:
    """Multi-head attention (3.2.2) of new positions to what the sentence already has.

    Args:
        attention: The attention of the model that is computed.
    """

    def __init__(self, attention: Any) -> None:
        self.attention = attention
        self.heads, self.d_k, self.d_v = attention.num_heads, attention.d_k, attention.d_v
        self.output = joined_projection([attention.out_proj])

    def split(self, projected: torch.Tensor, width: int) -> torch.Tensor:
        """`[sentences, rows, heads * width]` as `[sentences, heads, rows, width]`."""
        return projected.unflatten(-1, (self.heads, width)).transpose(1, 2)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Equation 1, for `query` `[sentences, heads, rows, d_k]`, over `keys` `[sentences, heads, nodes, d_k]` and
        `values` `[sentences, heads, nodes, d_v]`; `mask` is added to the scores. Gives `[sentences, rows, d_model]`."""
        scores = torch.matmul(query, keys.transpose(2, 3)).mul_(self.attention.scaling)
        if mask is not None:
            scores += mask  # [sentences, heads, rows, nodes]
        attended = torch.matmul(F.softmax(scores, dim=-1), values)  # [sentences, heads, rows, d_v]
        return self.output(attended.transpose(1, 2).flatten(2))


class SelfAttentionTree(IncrementalAttention):
    """Masked self-attention (3.2.3) whose keys and values lie in a tree.

    Args:
        attention: The model's self-attention.
        encoded: `[sentences, source, d_model]`.
        nodes: Nodes of each sentence that there is room for.
    """

    def __init__(self, attention: Any, encoded: torch.Tensor, nodes: int) -> None:
        super().__init__(attention)
        self.project = joined_projection([attention.q_proj, attention.k_proj, attention.v_proj])
        # Zero, since a CUDA graph attends to nodes not yet written, and a weight of zero makes nothing of a NaN.
        self.keys = encoded.new_zeros(encoded.shape[0], self.heads, nodes, self.d_k)
        self.values = encoded.new_zeros(encoded.shape[0], self.heads, nodes, self.d_v)

    def __call__(self, hidden: torch.Tensor, nodes: torch.Tensor, seen: slice, mask: torch.Tensor) -> torch.Tensor:
        """Write `hidden` `[sentences, rows, d_model]` into `nodes` `[rows]`, and attend to those that are `seen`."""
        sentences, heads = hidden.shape[0], self.heads
        widths = (heads * self.d_k, heads * self.d_k, heads * self.d_v)
        query, key, value = self.project(hidden).split(widths, dim=-1)
        for tree, new in ((self.keys, self.split(key, self.d_k)), (self.values, self.split(value, self.d_v))):
            tree[:sentences].index_copy_(2, nodes, new.to(tree.dtype))  # autocast computes in another type
        keys, values = self.keys[:sentences, :, seen], self.values[:sentences, :, seen]
        return self.attend(self.split(query, self.d_k), keys, values, mask)

    def grow(self, sentences: int, nodes: int) -> None:
        """Make room for so many more nodes, of the first `sentences` only."""
        self.keys = F.pad(self.keys[:sentences], (0, 0, 0, nodes))
        self.values = F.pad(self.values[:sentences], (0, 0, 0, nodes))

    def move(self, origin: torch.Tensor, target: torch.Tensor) -> None:
        """Put sentences into the places of others that have left; both `[moved]`."""
        for tree in (self.keys, self.values):
            tree[target] = tree[origin]


class SourceAttention(IncrementalAttention):
    """Encoder-decoder attention (3.2.3); the keys and values of a source are computed once, for all its hypotheses.

    Args:
        attention: The model's encoder-decoder attention.
        encoded: `[sentences, source, d_model]`.
        empty: `[sentences]`, whether a source is padding alone; attention to it gives zero.
    """

    def __init__(self, attention: Any, encoded: torch.Tensor, empty: torch.Tensor | None) -> None:
        super().__init__(attention)
        self.project = joined_projection([attention.q_proj])
        self.keys = self.split(attention.k_proj(encoded), self.d_k).contiguous()  # [sentences, heads, source, d_k]
        self.values = self.split(attention.v_proj(encoded), self.d_v).contiguous()
        if empty is not None:
            self.values.masked_fill_(empty[:, None, None, None], 0.0)

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        sentences = hidden.shape[0]
        query = self.split(self.project(hidden), self.d_k)  # [sentences, heads, rows, d_k]
        return self.attend(query, self.keys[:sentences], self.values[:sentences], mask)

    def move(self, origin: torch.Tensor, target: torch.Tensor) -> None:
        for source in (self.keys, self.values):
            source[target] = source[origin]


class IncrementalLayer:
    """One decoder layer (3.1); see `VaswaniDecoderLayer`, whose residuals it calls."""

    def __init__(self, layer: Any, encoded: torch.Tensor, empty: torch.Tensor | None, nodes: int) -> None:
        self.layer = layer
        self.self_attention = SelfAttentionTree(layer.self_attn, encoded, nodes)
        self.source_attention = SourceAttention(layer.encoder_attn, encoded, empty)
        self.inner = joined_projection([layer.feed_forward.fc1], layer.feed_forward.activation)
        self.outer = joined_projection([layer.feed_forward.fc2])

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
        return layer.feed_forward_residual(hidden, self.outer(self.inner(hidden)))  # [sentences, rows, d_model]


class IncrementalDecoder:
    """The decoder stack for beam search.

    Args:
        decoder: The model's decoder.
        lm_head: The projection to logits.
        encoded: `[sentences, source, d_model]`, what the encoder made of the sources.
        source_mask: `[sentences, source]`, 1 for tokens, 0 for padding; or None.
        num_beams: Hypotheses of a sentence.
        prefix_length: Tokens that every hypothesis starts with.
        max_length: Positions of the longest possible hypothesis, its prefix included.

    `sentences` of them are still searched for; the others have left, and the first ones of each tensor remain.
    """

    def __init__(
        self,
        decoder: Any,
        lm_head: nn.Linear,
        encoded: torch.Tensor,
        source_mask: torch.Tensor | None,
        num_beams: int,
        prefix_length: int,
        max_length: int,
    ) -> None:
        self.decoder = decoder
        self.num_beams = num_beams
        self.sentences = encoded.shape[0]
        self.max_length, self.prefix_length = max_length, prefix_length
        neighborhood = decoder.config.attention_neighborhood
        self.reach = None if neighborhood is None else neighborhood // 2
        self.project = joined_projection([lm_head])
        # Hypotheses share their prefix, so it takes one node a position; behind it each has its own.
        self.nodes = prefix_length + num_beams * min(BLOCK, max_length - prefix_length)
        self.lowest = torch.finfo(encoded.dtype).min
        self.mask = encoded.new_full((self.sentences, 1, num_beams, self.nodes), self.lowest)  # 0 at ancestors
        self.source_mask = empty = None
        if source_mask is not None and not bool(source_mask.bool().all()):
            padding = source_mask[:, None, None, :].logical_not()  # [sentences, 1, 1, source]
            self.source_mask = encoded.new_zeros(padding.shape).masked_fill_(padding, self.lowest)
            empty = padding.all(-1).flatten()  # [sentences]
        self.layers = [IncrementalLayer(layer, encoded, empty, self.nodes) for layer in decoder.layers]
        self.graph = StepGraph() if encoded.is_cuda else None
        self.length = self.end = 0  # positions, and nodes, that the tree has

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed the prefixes `[sentences, prefix]`; gives the last position's output `[sentences, 1, d_model]`."""
        length = tokens.shape[1]
        nodes = torch.arange(length, device=tokens.device)
        causal = self.mask.new_full((length, length), self.lowest).triu_(1)
        if self.reach is not None:
            causal += self.mask.new_full((length, length), self.lowest).tril_(-self.reach - 1)
        self.mask[..., :length] = 0
        self.length = self.end = length
        return self._run(tokens, self._positions(nodes), nodes, slice(length), causal)[:, -1:]

    def step(self, tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Feed each hypothesis's last token.

        Args:
            tokens: `[sentences, num_beams]`
            parents: `[sentences, num_beams]`, the hypothesis of the step before that each goes on from.

        Returns:
            `[sentences, num_beams, d_model]`
        """
        start, end = self.end, self.end + self.num_beams
        if end > self.nodes:
            self._grow()
        mask = self.mask[: self.sentences]  # [sentences, 1, num_beams, nodes]
        ancestors = mask[..., :start].gather(2, parents[:, None, :, None].expand(-1, -1, -1, start))
        mask[..., :start] = ancestors
        mask[:, 0, :, start:end].diagonal(dim1=1, dim2=2).zero_()  # every hypothesis sees itself
        first = self._first_seen()
        mask[..., :first] = self.lowest
        nodes = torch.arange(start, end, device=tokens.device)
        self.length, self.end = self.length + 1, end
        position = self._positions(torch.arange(self.length - 1, self.length, device=tokens.device))
        last, steps = self._rest_of_block()
        shape = (self.sentences, last)
        if self.graph is None or not self.graph.pays(shape, steps):
            return self._run(tokens, position, nodes, slice(first, end), mask[..., first:end])
        run = partial(self._run, seen=slice(last), mask=mask[..., :last])
        return self.graph.replay(shape, run, (tokens, position, nodes))

    def _rest_of_block(self) -> tuple[int, int]:
        """The last node of the current block of steps, and the most steps that can follow in it, this one included."""
        block = BLOCK * self.num_beams
        last = min(self.prefix_length + -(-(self.end - self.prefix_length) // block) * block, self.nodes)
        return last, min((last - self.end) // self.num_beams + 1, self.max_length - self.length)

    def _first_seen(self) -> int:
        """The first node that the next position sees: all behind the start, or those of its neighbourhood (4)."""
        position = 0 if self.reach is None else max(self.length - self.reach, 0)
        prefix = min(position, self.prefix_length)
        return prefix + self.num_beams * (position - prefix)

    def _grow(self) -> None:
        """Double the room: most sentences end long before their limit, which would take several times the memory."""
        more = self.nodes - self.prefix_length  # so that there is always room for whole blocks of steps
        for layer in self.layers:
            layer.self_attention.grow(self.sentences, more)
        self.mask = F.pad(self.mask[: self.sentences], (0, more), value=self.lowest)
        self.nodes += more

    def _positions(self, positions: torch.Tensor) -> torch.Tensor:
        """Encodings `[1, rows, d_model]` of `positions` `[rows]`."""
        return self.decoder.embed_positions(positions.unsqueeze(0), self.mask.dtype, self.length)

    def _run(
        self, tokens: torch.Tensor, positions: torch.Tensor, nodes: torch.Tensor, seen: slice, mask: torch.Tensor
    ) -> torch.Tensor:
        hidden = self.decoder.embed(tokens) + positions  # [sentences, rows, d_model]
        source_mask = None if self.source_mask is None else self.source_mask[: self.sentences]
        for layer in self.layers:
            hidden = layer(hidden, nodes, seen, mask, source_mask)
        return hidden

    def recorded(self) -> dict[str, Any]:
        return {}

    def may_leave(self, remaining: int) -> bool:
        """Whether it pays that all sentences but so many leave: a CUDA graph has to be captured anew then."""
        return remaining < self.sentences if self.graph is None else remaining <= self.sentences // 2

    def keep(self, order: list[int]) -> None:
        """Let all sentences leave but those in `order`, of which none moves to a later place than it has."""
        moved = [(origin, target) for target, origin in enumerate(order) if origin != target]
        self.sentences = len(order)
        if not moved:
            return
        origin, target = torch.tensor(moved, device=self.mask.device).unbind(-1)
        for layer in self.layers:
            layer.self_attention.move(origin, target)
            layer.source_attention.move(origin, target)
        self.mask[target] = self.mask[origin]
        if self.source_mask is not None:
            self.source_mask[target] = self.source_mask[origin]


class ForwardDecoder:
    """Decodes through the model's `forward`; see `IncrementalDecoder`.

    Slower, but attentions and hidden states can be seen, and parameters that are spread over processes are gathered.
    With `use_cache=False` it runs over all tokens again at each step, else it reorders the cache of `generate`.

    Args:
        model: The model.
        model_kwargs: For its `forward`, `[sentences * num_beams, ...]` each.
        settings: The generation configuration.
    """

    def __init__(self, model: Any, model_kwargs: dict[str, Any], settings: GenerationConfig) -> None:
        own = ("use_cache", "logits_to_keep", "decoder_attention_mask", "output_attentions", "output_hidden_states")
        self.model, self.num_beams = model, settings.num_beams
        self.inputs = {
            name: value for name, value in model_kwargs.items() if name not in (*own, "past_key_values", "labels")
        }
        self.mask = model_kwargs.get("decoder_attention_mask")  # [sentences * num_beams, prefix]
        self.cache = model_kwargs.get("past_key_values") if settings.use_cache else None
        shown = settings.return_dict_in_generate
        self.attentions, self.hidden = shown and settings.output_attentions, shown and settings.output_hidden_states
        self.outputs: list[Any] = []

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        self.tokens = tokens.unsqueeze(1).expand(-1, self.num_beams, -1)  # [sentences, num_beams, length]
        return self._run(tokens.shape[1])[:, :1]

    def step(self, tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        continued = self.tokens.gather(1, parents.unsqueeze(-1).expand_as(self.tokens))
        self.tokens = torch.cat((continued, tokens.unsqueeze(-1)), dim=-1)
        if self.cache is not None:
            sentences = torch.arange(len(parents), device=parents.device).unsqueeze(-1)
            self.cache.reorder_cache((parents + self.num_beams * sentences).flatten())
        return self._run(1)

    def _run(self, new: int) -> torch.Tensor:
        """Logits `[sentences, num_beams, vocabulary]` behind the last of the `new` tokens."""
        tokens = self.tokens.flatten(0, 1)
        if self.mask is not None:  # [sentences * num_beams, length]
            self.mask = F.pad(self.mask, (0, tokens.shape[1] - self.mask.shape[1]), value=1)
        cache = self.cache if new else None  # idling leaves it alone
        # Adapters replace this method, to give the decoder more than tokens.
        inputs = self.model.prepare_inputs_for_generation(
            tokens,
            next_sequence_length=None if cache is None else new,
            past_key_values=cache,
            is_first_iteration=cache is None or new == tokens.shape[1],
            **self.inputs,
        )
        # Not the four-dimensional mask of a static cache, from which positions behind left padding cannot be told.
        inputs["decoder_attention_mask"] = self.mask
        inputs["use_cache"] = cache is not None
        output = self.model(
            **inputs,
            return_dict=True,
            logits_to_keep=1,
            output_attentions=self.attentions,
            output_hidden_states=self.hidden,
        )
        if cache is not None:
            self.cache = output.past_key_values
        if new and (self.attentions or self.hidden):
            self.outputs.append(output)
        return output.logits[:, -1].unflatten(0, (-1, self.num_beams))

    def idle(self) -> None:
        """Run the model for nothing, since other processes, which are not done, wait for this one to take part."""
        self._run(0)

    def project(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def may_leave(self, remaining: int) -> bool:
        return False

    def recorded(self) -> dict[str, Any]:
        """What was asked to be seen: for each step a tuple of tensors, one for each layer."""

        def of_steps(name: str) -> tuple[tuple[torch.Tensor, ...], ...]:
            return tuple(output[name] for output in self.outputs)

        encoded, seen = self.inputs["encoder_outputs"], {"past_key_values": self.cache}
        if self.attentions:
            seen |= {
                "decoder_attentions": of_steps("decoder_attentions"),
                "cross_attentions": of_steps("cross_attentions"),
            }
            seen["encoder_attentions"] = encoded.get("attentions")
        if self.hidden:
            seen["decoder_hidden_states"] = of_steps("decoder_hidden_states")
            seen["encoder_hidden_states"] = encoded.get("hidden_states")
        return seen
