"""Perplexity per sub-word, the PPL column of Table 3."""

import math
from dataclasses import dataclass

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from ..data.batching import plan_batches


@dataclass(frozen=True)
class Perplexity:
    """Perplexity per sub-word, its logarithm, and the number of target sub-words."""

    perplexity: float
    nats_per_token: float
    tokens: int


@torch.no_grad()
def perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoded: Dataset, tokens_per_batch: int = 8192
) -> Perplexity:
    """Compute the perplexity of the targets given the sources; EOS counts as a sub-word.

    Collective: every pair is scored by one process, and all processes return the same result.

    Args:
        model: The model, on the device to use.
        tokenizer: Its tokenizer, for padding.
        encoded: The result of `encode_corpus`.
        tokens_per_batch: Most source and most target tokens of a batch, padding included.
    """
    model.eval()
    state = PartialState()
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    source, target = encoded["source_length"][:], encoded["target_length"][:]
    budget = max(tokens_per_batch, max(source), max(target))
    mine = plan_batches(source, target, budget, budget).batches[state.process_index :: state.num_processes]
    nats, tokens = 0.0, 0
    rows = encoded.select_columns(["input_ids", "labels"])
    for indices in tqdm(mine, desc="Perplexity", disable=not state.is_main_process):
        batch = collator([rows[int(index)] for index in indices]).to(model.device)
        labels = batch.pop("labels")  # [batch, target]
        logits = model(**batch).logits.flatten(0, 1).float()
        losses = F.cross_entropy(logits, labels.flatten(), reduction="none")  # [batch * target]
        nats += float(losses.cpu().double().sum())
        tokens += int(labels.ne(-100).sum())
    nats, tokens = (sum(column) for column in zip(*gather_object([(nats, tokens)]), strict=True))
    return Perplexity(math.exp(nats / tokens), nats / tokens, tokens)
