"""Translating many sentences at once (6.1), in batches of similar length."""

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.batching import plan_batches


@torch.no_grad()
def translate_corpus(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = 2048,
    **generate_kwargs: Any,
) -> list[str]:
    """Translate sentences; the result is in their order, and the same on every process.

    Each sentence is translated once, on however many processes the work is spread. An empty sentence gives an empty
    translation.

    Args:
        model: The model, on the device to use.
        tokenizer: Its tokenizer.
        sentences: Source sentences.
        tokens_per_batch: Source tokens of a batch, padding included.
        generate_kwargs: For `generate`; by default it decodes as section 6.1 says.
    """
    model.eval()
    state = PartialState()
    filled = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    if not filled:
        return [""] * len(sentences)
    ids = tokenizer([sentences[index].strip() for index in filled]).input_ids
    lengths = [len(tokens) for tokens in ids]
    budget = max(tokens_per_batch, max(lengths))
    # The longest first: memory fails at once or never, and the last batches, which keep processes waiting, are short.
    batches = plan_batches(lengths, lengths, budget, budget).batches[::-1]
    mine: list[tuple[int, str]] = []
    with tqdm(total=len(filled), desc="Translating", unit="sentences", disable=not state.is_main_process) as bar:
        for number, batch in enumerate(batches):
            if number % state.num_processes == state.process_index:
                inputs = tokenizer.pad({"input_ids": [ids[i] for i in batch]}, return_tensors="pt").to(model.device)
                outputs = model.generate(**inputs, **generate_kwargs)  # [batch, target]
                texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
                mine.extend((filled[i], text) for i, text in zip(batch, texts, strict=True))
            bar.update(len(batch))
    translations = [""] * len(sentences)
    for index, text in gather_object(mine):
        translations[index] = text
    return translations
