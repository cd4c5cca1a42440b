"""Attention weights (3.2) of a sentence and its translation, with the words that they connect."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.languages_vaswani import Directions
from ..model.scores_vaswani import eager_copy
from ..model.tokenization_vaswani import for_targets
from .tokens import shown_tokens


Kind = Literal["encoder", "decoder", "cross"]

START = "<s>"  # shown for the decoder's first input, whatever entry of the vocabulary a model starts from


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Attention weights of one pair of sentences; every row sums to 1.

    Row `t` of the decoder's weights is the position that predicts `target[t]`: its input is `inputs[t]`, which is the
    start for `t = 0`, and `target[t - 1]` otherwise. In self-attention the columns are `inputs`, in encoder-decoder
    attention they are `source`.

    Attributes:
        source: Tokens of the source as text, S of them, with the `</s>` at its end. The text of a token may be empty:
            see `shown_tokens`.
        target: The T tokens that the decoder predicts, with the `</s>` at their end, if it was reached.
        source_continues: Whether each token of the source continues the word of the token before it.
        target_continues: The same of the target.
        encoder: Self-attention of the encoder, `[layers, heads, S, S]`.
        decoder: Self-attention of the decoder, `[layers, heads, T, T]`, zero above the diagonal.
        cross: Encoder-decoder attention, `[layers, heads, T, S]`.
    """

    source: list[str]
    target: list[str]
    source_continues: list[bool]
    target_continues: list[bool]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray

    @property
    def inputs(self) -> list[str]:
        """Inputs of the decoder: the start, then the target without its last token."""
        return [START, *self.target[:-1]]

    def select(self, kind: Kind) -> tuple[list[str], list[str], np.ndarray]:
        """Tokens of the rows, which attend; tokens of the columns; weights `[layers, heads, rows, columns]`."""
        return {
            "encoder": (self.source, self.source, self.encoder),
            "decoder": (self.target, self.inputs, self.decoder),
            "cross": (self.target, self.source, self.cross),
        }[kind]


@torch.no_grad()
def read_attention(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | Sequence[int] | None = None,
) -> AttentionWeights:
    """Compute the attention weights of a sentence and its translation.

    Args:
        model: An encoder-decoder model; it is in evaluation mode afterwards, as without dropout.
        tokenizer: Its tokenizer.
        source: A sentence.
        target: Its translation, as text or as tokens with the EOS; by default the model's.

    Raises:
        ValueError: The model has several directions, and the source does not begin with the tag of one.
    """
    model.eval()
    inputs = tokenizer(source, return_tensors="pt").to(model.device)  # [1, S]
    Directions(model.config).require_tagged(inputs.input_ids)
    if target is None:
        labels = model.generate(**inputs, num_return_sequences=1, return_dict_in_generate=False)[:, 1:]
    elif isinstance(target, str):
        labels = for_targets(tokenizer)(text_target=target, return_tensors="pt").input_ids
    else:
        labels = torch.tensor([list(target)])
    labels = labels.to(model.device)  # [1, T]
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    outputs = eager_copy(model)(**inputs, decoder_input_ids=shifted, output_attentions=True, use_cache=False)
    source_texts, source_continues = shown_tokens(tokenizer, _source_tokens(tokenizer, source, inputs.input_ids[0]))
    target_texts, target_continues = shown_tokens(tokenizer, tokenizer.convert_ids_to_tokens(labels[0].tolist()))
    return AttentionWeights(
        source=source_texts,
        target=target_texts,
        source_continues=source_continues,
        # A last token without `</s>` is no input, so that with it, rows and columns would be divided differently.
        target_continues=[*target_continues[:-1], False],
        encoder=_stack(outputs.encoder_attentions),
        decoder=_stack(outputs.decoder_attentions),
        cross=_stack(outputs.cross_attentions),
    )


def merge_words(weights: AttentionWeights) -> AttentionWeights:
    """Weights between words: a word's column is the sum over its tokens, its row the mean over them.

    In the decoder, a word of several tokens attends to its own first tokens too, one place right of the diagonal.
    """
    source, target = word_starts(weights.source_continues), word_starts(weights.target_continues)
    inputs = word_starts([False, *weights.target_continues[:-1]])
    return AttentionWeights(
        source=join_words(weights.source, source),
        target=join_words(weights.target, target),
        source_continues=[False] * len(source),
        target_continues=[False] * len(target),
        encoder=_merged(weights.encoder, source, source),
        decoder=_merged(weights.decoder, target, inputs),
        cross=_merged(weights.cross, target, source),
    )


def word_starts(continues: Sequence[bool]) -> list[int]:
    """The place of each word's first token."""
    return [place for place, is_inside in enumerate(continues) if not is_inside]


def join_words(tokens: Sequence[str], starts: Sequence[int]) -> list[str]:
    """The text of each word, whose first token is at one of these places."""
    return ["".join(tokens[start:stop]) for start, stop in pairwise([*starts, len(tokens)])]


def _merged(weights: np.ndarray, rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
    """`weights` `[layers, heads, rows, columns]`, of the words that start at these places."""
    sums = np.add.reduceat(np.add.reduceat(weights, columns, axis=-1), rows, axis=-2)
    counts = np.diff([*rows, weights.shape[-2]])  # tokens of each row's word
    return sums / counts[:, None].astype(weights.dtype)


def _source_tokens(tokenizer: PreTrainedTokenizerBase, source: str, ids: torch.Tensor) -> list[str]:
    """Entries of the source's vocabulary, which may be another than the one that `convert_ids_to_tokens` knows."""
    tokens = tokenizer.tokenize(source)
    known = len(tokens) if len(tokens) == len(ids) - 1 and ids[-1] in tokenizer.all_special_ids else 0
    return tokens[:known] + tokenizer.convert_ids_to_tokens(ids[known:].tolist())


def _stack(attentions: Sequence[torch.Tensor]) -> np.ndarray:
    """Weights of one layer `[1, heads, rows, columns]` each, as `[layers, heads, rows, columns]`."""
    return torch.cat(list(attentions)).float().cpu().numpy()
