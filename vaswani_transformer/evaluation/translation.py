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
    """Translate sentences; the result is in their order.

    Collective: the processes share the sentences, and all get the same result. White space around a sentence is
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
    # In turn by length, so that all processes have about as much to do.
    by_length = sorted(range(len(stripped)), key=lambda index: -len(stripped[index]))
    mine = by_length[state.process_index :: state.num_processes]
    share = [stripped[index] for index in mine]
    translated: list[tuple[int, str]] = []
    with tqdm(total=len(mine), desc="Translating", unit="sentences", disable=not state.is_main_process) as bar:
        for places, hypotheses in translate_in_batches(model, tokenizer, share, tokens_per_batch, **generate_kwargs):
            translated += [(mine[place], texts[0]) for place, texts in zip(places, hypotheses, strict=True)]
            bar.update(len(places))
    return [text for _, text in sorted(gather_object(translated))]
