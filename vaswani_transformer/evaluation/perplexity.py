"""Perplexity per sub-word, the PPL column of Table 3."""

import math

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from ..data.batching import plan_batches


@torch.no_grad()
def perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoded: Dataset, tokens_per_batch: int = 8192
) -> dict[str, float]:
    """Perplexity of the targets given the sources, EOS predicted like any sub-word.

    Every pair counts once, on however many processes the work is spread.

    Args:
        model: The model, on the device to use.
        tokenizer: It pads.
        encoded: The result of `encode_corpus`.
        tokens_per_batch: Tokens of a batch a side, padding included.

    Returns:
        "perplexity", "nats_per_token", and "tokens", the number of target sub-words.
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
    return {"perplexity": math.exp(nats / tokens), "nats_per_token": nats / tokens, "tokens": tokens}
