"""Perplexity per sub-word, the PPL column of Table 3."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from torch.nn import functional as F
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from ..data.batching import plan_batches
from ..system.console import ProgressBar


@dataclass(frozen=True)
class Perplexity:
    """Perplexity per sub-word, its logarithm, and the number of target sub-words."""

    perplexity: float
    nats_per_token: float
    tokens: int


def perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoded: Dataset, tokens_per_batch: int = 8192
) -> Perplexity:
    """Compute the perplexity of the targets given the sources; EOS counts as a sub-word.

    Collective, with the arguments of `nats_of_pairs`.
    """
    nats = float(nats_of_pairs(model, tokenizer, encoded, tokens_per_batch, "Perplexity").sum())
    tokens = sum(encoded["target_length"][:])
    return Perplexity(math.exp(nats / tokens), nats / tokens, tokens)


@torch.no_grad()
def nats_of_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Dataset,
    tokens_per_batch: int = 8192,
    description: str = "Scoring",
) -> np.ndarray:
    """The negative log-probability of each target given its source, in nats: `[pairs]`. EOS counts as a sub-word.

    Collective: every pair is scored by one process, and all processes return the same result.

    Args:
        model: The model, on the device to use.
        tokenizer: Its tokenizer, for padding.
        encoded: The result of `encode_corpus`.
        tokens_per_batch: Most source and most target tokens of a batch, padding included.
        description: Text of the progress bar.
    """
    model.eval()
    state = PartialState()
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    source, target = encoded["source_length"][:], encoded["target_length"][:]
    budget = max(tokens_per_batch, max(source), max(target))
    mine = plan_batches(source, target, budget, budget).batches[state.process_index :: state.num_processes]
    rows = encoded.select_columns(["input_ids", "labels"])
    scored: list[tuple[np.ndarray, np.ndarray]] = []
    for indices in ProgressBar(mine, desc=description, disable=not state.is_main_process):
        batch = collator([rows[int(index)] for index in indices]).to(model.device)
        labels = batch.pop("labels")  # [batch, target]
        logits = model(**batch).logits.flatten(0, 1).float()
        losses = F.cross_entropy(logits, labels.flatten(), reduction="none")  # [batch * target], 0 at padding
        scored.append((indices, losses.view_as(labels).cpu().double().sum(-1).numpy()))
    nats = np.zeros(len(source))
    for indices, values in gather_object(scored):
        nats[indices] = values
    return nats
