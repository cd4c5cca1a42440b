"""Translation of many sentences (6.1) on all processes."""

from collections.abc import Sequence
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.pipeline_vaswani import translate_in_batches


def translate_corpus(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = 4096,
    **generate_kwargs: Any,
) -> list[str]:
    """Translate sentences; translations are in the order of the sentences.

    Collective: the processes share the sentences, and all return the same result. White space around a sentence is
    removed. The translation of an empty sentence is empty.

    Args:
        model: The model, on the device to use.
        tokenizer: Its tokenizer.
        sentences: Source sentences.
        tokens_per_batch: Source tokens of a batch, padding included; its beams may generate 16 times as many.
        generate_kwargs: For `generate`; by default it searches as in section 6.1.
    """
    model.eval()
    state = PartialState()
    stripped = [sentence.strip() for sentence in sentences]
    # Dealt out by length, so that all processes have about the same work.
    by_length = sorted(range(len(stripped)), key=lambda index: -len(stripped[index]))
    mine = by_length[state.process_index :: state.num_processes]
    share = [stripped[index] for index in mine]
    translated: list[tuple[int, str]] = []
    with tqdm(total=len(mine), desc="Translating", unit="sentences", disable=not state.is_main_process) as bar:
        for indices, hypotheses in translate_in_batches(model, tokenizer, share, tokens_per_batch, **generate_kwargs):
            translated += [(mine[index], texts[0]) for index, texts in zip(indices, hypotheses, strict=True)]
            bar.update(len(indices))
    return [text for _, text in sorted(gather_object(translated))]
