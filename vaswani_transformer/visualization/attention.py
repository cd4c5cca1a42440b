"""Attention weights (3.2) of a sentence and its translation, with the connected words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.languages_vaswani import Directions
from ..model.scores_vaswani import eager_copy, for_targets
from .tokens import join_words, shown_tokens, word_starts


Kind = Literal["encoder", "decoder", "cross"]

START = "<s>"  # shown for the decoder's first input, whatever the model's start token is


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Attention weights of one pair of sentences; every row sums to 1.

    Row `t` of the decoder's weights is the position that predicts `target[t]`: its input is `inputs[t]`, which is the
    start for `t = 0`, and `target[t - 1]` otherwise. In self-attention the columns are `inputs`, in encoder-decoder
    attention they are `source`.

    Attributes:
        source: The S tokens of the source as text, with `</s>` at the end; see `shown_tokens`.
        target: The T tokens that the decoder predicts, with `</s>` at the end if it was reached.
        source_continues, target_continues: Whether each token continues the word of the token before it.
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
        model, tokenizer: An encoder-decoder model, which is in evaluation mode afterwards, and its tokenizer.
        source: A sentence.
        target: Its translation, as text or as tokens with EOS; by default the model's.

    Raises:
        ValueError: The model has several directions, and the source does not begin with a language tag.
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
        # A last token other than `</s>` is not an input; including it would divide rows and columns differently.
        target_continues=[*target_continues[:-1], False],
        encoder=_stack(outputs.encoder_attentions),
        decoder=_stack(outputs.decoder_attentions),
        cross=_stack(outputs.cross_attentions),
    )


def merge_words(weights: AttentionWeights) -> AttentionWeights:
    """Convert to weights between words: a word's column is the sum over its tokens, its row the mean over them.

    In the decoder, a word of several tokens also attends to its own first tokens, one place right of the diagonal.
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


def _merged(weights: np.ndarray, rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
    """Merge `weights` `[layers, heads, rows, columns]` into words that start at these rows and columns."""
    sums = np.add.reduceat(np.add.reduceat(weights, columns, axis=-1), rows, axis=-2)
    counts = np.diff([*rows, weights.shape[-2]])  # tokens of each row's word
    return sums / counts[:, None].astype(weights.dtype)


def _source_tokens(tokenizer: PreTrainedTokenizerBase, source: str, ids: torch.Tensor) -> list[str]:
    """Entries of the source's vocabulary, which may differ from the vocabulary of `convert_ids_to_tokens`."""
    tokens = tokenizer.tokenize(source)
    known = len(tokens) if len(tokens) == len(ids) - 1 and ids[-1] in tokenizer.all_special_ids else 0
    return tokens[:known] + tokenizer.convert_ids_to_tokens(ids[known:].tolist())


def _stack(attentions: Sequence[torch.Tensor]) -> np.ndarray:
    """Stack the layers' weights, `[1, heads, rows, columns]` each, as `[layers, heads, rows, columns]`."""
    return torch.cat(list(attentions)).float().cpu().numpy()
