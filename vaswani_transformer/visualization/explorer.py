"""A page to explore one translation: attention (3.2), beam search (6.1), and alternatives to each token."""

import base64
import hashlib
import html
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..io.files import atomic_write
from ..model.tokenization_vaswani import for_targets
from .alternatives import Choice, find_alternatives
from .attention import AttentionWeights, merge_words, read_attention, require_text, word_starts
from .search_trace import SearchTrace, trace_search
from .tokens import shown_tokens


_FOLDER = Path(__file__).parent

# Characters that could end a script element, or a line of a script.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


class ExplorerView:
    """The page to explore one translation, which notebooks show in a frame.

    Attributes:
        page: Its HTML.
    """

    def __init__(self, page: str) -> None:
        self.page = page

    def _repr_html_(self) -> str:
        style = 'style="width: 100%; height: 800px; border: 0"'
        return f'<iframe sandbox="allow-scripts" title="Explorer" {style} srcdoc="{html.escape(self.page)}"></iframe>'


def explore(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str | None = None, **options: Any
) -> ExplorerView:
    """The page of `write_explorer`, with its arguments, for a notebook."""
    return ExplorerView(explorer_page(model, tokenizer, source, target, **options))


def write_explorer(
    path: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    **options: Any,
) -> None:
    """Write the page that `explorer_page` makes of these arguments, atomically."""
    atomic_write(path, explorer_page(model, tokenizer, source, target, **options))


def explorer_page(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    alternatives: int = 4,
    max_tokens: int = 128,
    show_progress: bool = False,
    **options: Any,
) -> str:
    """HTML that shows how a model translates a sentence: one file, which needs no network.

    Attention and alternatives are shown for words: see `merge_words`. The weights are rounded to 1/255.

    Args:
        model: A model of this package, in evaluation mode.
        tokenizer: Its tokenizer.
        source: The sentence.
        target: A translation to show attention and alternatives of; by default the one that the search finds.
        alternatives: Alternatives of each token of the translation; 0 saves their searches.
        max_tokens: Largest number of tokens of a sentence; the time grows with its square, or faster.
        show_progress: Whether to show a bar, which counts the alternatives.
        options: For `generate`, such as `num_beams` and `length_penalty`.

    Raises:
        TypeError: A sentence is no string.
        ValueError: A sentence is empty, is no valid Unicode, or has more tokens than `max_tokens` or than the model has
            positions; or `num_beams` is 1.
    """
    require_text("source", source)
    given = {"source": tokenizer(source).input_ids}
    if target is not None:
        require_text("target", target)
        given["target"] = for_targets(tokenizer)(text_target=target).input_ids
    for name, ids in given.items():
        if len(ids) > max_tokens:
            raise ValueError(
                f"{name}: has {len(ids)} tokens, more than max_tokens, {max_tokens}; shorten it, or raise max_tokens: "
                f"twice as many tokens take at least four times as long"
            )
    trace = trace_search(model, tokenizer, source, **options)
    tokens = given.get("target", trace.hypotheses[0].tokens)
    weights = read_attention(model, tokenizer, source, tokens)
    choices = find_alternatives(model, tokenizer, source, tokens, alternatives, show_progress=show_progress, **options)
    data = {
        "source": source,
        "translation": target or trace.hypotheses[0].text,
        "isGiven": target is not None,
        "attention": _attention(merge_words(weights)),
        "search": _search(trace),
        "words": _words(tokenizer, weights, choices),
    }
    return _page(data, f"{source[:80]} – how it is translated")


def _attention(weights: AttentionWeights) -> dict[str, Any]:
    """Words and weights of the attentions, by kind."""
    kinds: dict[str, Any] = {}
    for kind in ("cross", "encoder", "decoder"):
        rows, columns, values = weights.select(kind)
        quantised = np.rint(values * 255).astype(np.uint8)  # [layers, heads, rows, columns]
        kinds[kind] = {
            "rows": rows,
            "columns": columns,
            "layers": values.shape[0],
            "heads": values.shape[1],
            "weights": base64.b64encode(quantised.tobytes()).decode("ascii"),
        }
    return kinds


def _search(trace: SearchTrace) -> dict[str, Any]:
    """The search, its numbers rounded; a candidate is a list, as there may be thousands."""
    steps = [
        {
            "candidates": [
                [
                    candidate.text,
                    candidate.parent,
                    *map(_rounded, (candidate.log_probability, candidate.score, candidate.normalized_score)),
                    candidate.fate,
                    candidate.until,
                ]
                for candidate in step.candidates
            ],
            "finished": step.finished,
            "deciding": _rounded(step.deciding_score),
            "bound": _rounded(step.bound),
        }
        for step in trace.steps
    ]
    return {
        "beams": trace.num_beams,
        "alpha": trace.length_penalty,
        "penalty": trace.penalty_type,
        "limit": trace.length_limit,
        "reason": trace.reason,
        "steps": steps,
        "hypotheses": [
            {"place": found.place, "score": _rounded(found.score), "text": found.text} for found in trace.hypotheses
        ],
    }


def _words(
    tokenizer: PreTrainedTokenizerBase, weights: AttentionWeights, choices: tuple[Choice, ...]
) -> list[dict[str, Any]]:
    """The words of the translation, each with the choices of its tokens."""
    bounds = [*word_starts(weights.target_continues), len(choices)]
    return [
        {
            "text": "".join(weights.target[start:stop]),
            "probability": _rounded(math.prod(choice.probability for choice in choices[start:stop])),
            "choices": [_choice(tokenizer, choices[place], place) for place in range(start, stop)],
        }
        for start, stop in pairwise(bounds)
    ]


def _choice(tokenizer: PreTrainedTokenizerBase, choice: Choice, place: int) -> dict[str, Any]:
    """A token at a place of the translation, and the words that its alternatives begin or continue."""
    found = []
    for other in choice.alternatives:
        texts, continues = shown_tokens(tokenizer, tokenizer.convert_ids_to_tokens(list(other.tokens)))
        bounds = pairwise([*word_starts(continues), len(texts)])
        word = next("".join(texts[start:stop]) for start, stop in bounds if place < stop)
        found.append({"text": word, "probability": _rounded(other.probability), "translation": other.translation})
    return {"text": choice.text, "probability": _rounded(choice.probability), "alternatives": found}


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 4)


def _page(data: dict[str, Any], title: str) -> str:
    """The page, with a policy that lets it run its own script and load nothing."""
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("explorer.css", "explorer.js"))
    return environment.get_template("explorer.html.jinja").render(
        title=title,
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES),
    )


def _hash(text: str) -> str:
    """A source of a Content-Security-Policy: the digest of an inline element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
