"""Translation of many sentences (6.1) on all processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.pipeline_vaswani import Translation, translate_in_batches
from ..system.console import ProgressBar


T = TypeVar("T")


def best_translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = 4096,
    show_progress: bool = True,
    **generate_kwargs: Any,
) -> list[Translation]:
    """Translate sentences by `translate_in_batches`; translations keep the order of the sentences.

    Collective: the processes share the sentences, and all return the same result. White space around a sentence is
    removed. `show_progress` says whether the main process shows a bar.
    """
    model.eval()
    stripped = [sentence.strip() for sentence in sentences]

    def translate(indices: list[int]) -> Iterator[tuple[list[int], list[list[Translation]]]]:
        share = [stripped[index] for index in indices]
        return translate_in_batches(model, tokenizer, share, tokens_per_batch, **generate_kwargs)

    description = "Translating" if show_progress else None
    return [ranked[0] for ranked in search_on_all_processes([*map(len, stripped)], translate, description)]


def translate_corpus(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], **options: Any
) -> list[str]:
    """The texts of `best_translations`, whose options it takes. Collective."""
    return [each.text for each in best_translations(model, tokenizer, sentences, **options)]


def search_on_all_processes(
    lengths: Sequence[int], search: Callable[[list[int]], Iterable[tuple[list[int], list[T]]]], description: str | None
) -> list[T]:
    """Divide sentences among the processes, and gather a search's results in the order of the sentences. Collective.

    Args:
        lengths: Length of each sentence; sentences are dealt out by length, so that all processes have similar work.
        search: Yields positions in a list of indices of sentences, and the results for each.
        description: Text of the progress bar; None for no bar.
    """
    state = PartialState()
    by_length = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    mine = by_length[state.process_index :: state.num_processes]
    numbered: list[tuple[int, T]] = []
    is_shown = description is not None and state.is_main_process
    with ProgressBar(total=len(mine), desc=description, unit="sentences", disable=not is_shown) as bar:
        for positions, results in search(mine):
            numbered += [(mine[position], result) for position, result in zip(positions, results, strict=True)]
            bar.update(len(positions))
    return [result for _, result in sorted(gather_object(numbered), key=itemgetter(0))]
