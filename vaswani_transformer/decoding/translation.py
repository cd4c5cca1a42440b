"""Translation of many sentences (6.1) on all processes."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.translation_vaswani import Translation, translate_in_batches
from ..system.console import ProgressBar


S = TypeVar("S", bound=Sequence)
T = TypeVar("T")


def best_translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    show_progress: bool = True,
    **options: Any,
) -> list[Translation]:
    """Translate sentences by `translate_in_batches`, whose options it takes; the result keeps their order.

    Collective: the processes share the sentences, and all return the same result. White space around a sentence is
    removed. `show_progress` says whether the main process shows a bar.
    """
    model.eval()
    search = partial(translate_in_batches, model, tokenizer, **options)
    description = "Translating" if show_progress else None
    stripped = [sentence.strip() for sentence in sentences]
    return [ranked[0] for ranked in search_on_all_processes(stripped, search, description)]


def translate_corpus(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], **options: Any
) -> list[str]:
    """The texts of `best_translations`, whose options it takes. Collective."""
    return [each.text for each in best_translations(model, tokenizer, sentences, **options)]


def search_on_all_processes(
    sentences: Sequence[S], search: Callable[[list[S]], Iterable[tuple[list[int], list[T]]]], description: str | None
) -> list[T]:
    """Divide sentences among the processes, and gather a search's results in the order of the sentences. Collective.

    Args:
        sentences: Texts, or lists of words; they are dealt out by length, so that all processes have similar work.
        search: Yields indices into a list of sentences, and the result for each.
        description: Text of the progress bar; None for no bar.
    """
    state = PartialState()
    by_length = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
    mine = by_length[state.process_index :: state.num_processes]
    numbered: list[tuple[int, T]] = []
    is_shown = description is not None and state.is_main_process
    with ProgressBar(total=len(mine), desc=description, unit="sentences", disable=not is_shown) as bar:
        for positions, results in search([sentences[index] for index in mine]):
            numbered += [(mine[position], result) for position, result in zip(positions, results, strict=True)]
            bar.update(len(positions))
    return [result for _, result in sorted(gather_object(numbered), key=itemgetter(0))]
