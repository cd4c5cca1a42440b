"""A page to explore one translation: attention (3.2), beam search (6.1), and alternatives to each token."""

import base64
import hashlib
import html
import json
import math
from bisect import bisect_right
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.languages_vaswani import Directions
from ..model.scores_vaswani import for_targets
from ..model.sentences_vaswani import Paragraph
from ..system.files import atomic_write
from .alternatives import Choice, find_alternatives
from .attention import AttentionWeights, Kind, merge_words, read_attention
from .search_trace import trace_search
from .tokens import join_words, shown_tokens, word_starts


_FOLDER = Path(__file__).parent

# Characters that could end a script element, or a line of a script.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


class ExplorerView:
    """The explorer's page, as HTML, which a notebook shows in a frame."""

    def __init__(self, page: str) -> None:
        self.page = page

    def save(self, path: str | Path) -> None:
        """Write the page atomically."""
        atomic_write(path, self.page)

    def _repr_html_(self) -> str:
        style = 'style="width: 100%; height: 800px; border: 0"'
        return f'<iframe sandbox="allow-scripts" title="Explorer" {style} srcdoc="{html.escape(self.page)}"></iframe>'


def explore(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    alternatives: int = 4,
    max_tokens: int = 128,
    show_progress: bool = False,
    **options: Any,
) -> ExplorerView:
    """Show how a model translates a sentence, on a page that needs no network.

    Attention and alternatives are shown for words: see `merge_words`. The weights are rounded to 1/255.

    Args:
        model, tokenizer: A model of this package, in evaluation mode, and its tokenizer.
        source: The sentence. If a text has several, the page shows the first, and says so.
        target: A translation whose attention and alternatives to show; by default the best one of the search. With it,
            a text of several sentences is translated as one.
        alternatives: Alternatives of each token of the translation; 0 saves their searches.
        max_tokens: Upper limit of the tokens of a sentence; time grows at least quadratically with it.
        show_progress: Whether to show a bar, which counts the alternatives.
        options: Keywords of `generate`.

    Raises:
        ValueError: A sentence has more than `max_tokens`.
    """
    directions = Directions(model.config)
    sentences = [source] if target is not None else Paragraph.split(directions, source).sentences
    if len(sentences) > 1:
        source = sentences[0]
    sides = {"source": tokenizer(source).input_ids}
    if target is not None:
        sides["target"] = for_targets(tokenizer)(text_target=target).input_ids
    for name, ids in sides.items():
        if len(ids) > max_tokens:
            raise ValueError(f"{name}: has {len(ids)} tokens, more than max_tokens, {max_tokens}; shorten it")
    trace = trace_search(model, tokenizer, source, **options)
    tokens = sides.get("target", trace.hypotheses[0].tokens)
    weights = read_attention(model, tokenizer, source, tokens)
    choices = find_alternatives(model, tokenizer, source, tokens, alternatives, show_progress=show_progress, **options)
    merged, (_, shown) = merge_words(weights), directions.split(source)
    data = {
        "source": shown,
        "translation": target or trace.hypotheses[0].text,
        "isGiven": target is not None,
        "attention": {kind: _attention(*merged.select(kind)) for kind in get_args(Kind)},
        "search": asdict(trace),
        "words": _words(tokenizer, weights, choices),
    }
    return ExplorerView(_page(data, f"{shown[:80]} – how it is translated", len(sentences)))


def _attention(rows: list[str], columns: list[str], values: np.ndarray) -> dict[str, Any]:
    """Words and weights `[layers, heads, rows, columns]` of one kind of attention."""
    quantised = np.rint(values * 255).astype(np.uint8)
    return {
        "rows": rows,
        "columns": columns,
        "layers": values.shape[0],
        "heads": values.shape[1],
        "weights": base64.b64encode(quantised.tobytes()).decode("ascii"),
    }


def _words(
    tokenizer: PreTrainedTokenizerBase, weights: AttentionWeights, choices: tuple[Choice, ...]
) -> list[dict[str, Any]]:
    """The words of the translation, each with the choices of its tokens."""
    bounds = [*word_starts(weights.target_continues), len(choices)]
    return [
        {
            "text": "".join(weights.target[start:stop]),
            "probability": math.prod(choice.probability for choice in choices[start:stop]),
            "choices": [_choice(tokenizer, choices[position], position) for position in range(start, stop)],
        }
        for start, stop in pairwise(bounds)
    ]


def _choice(tokenizer: PreTrainedTokenizerBase, choice: Choice, position: int) -> dict[str, Any]:
    """A token at a position of the translation, and the words that its alternatives begin or continue."""
    alternatives = []
    for other in choice.alternatives:
        texts, continues = shown_tokens(tokenizer, tokenizer.convert_ids_to_tokens(list(other.tokens)))
        starts = word_starts(continues)
        word = join_words(texts, starts)[bisect_right(starts, position) - 1]
        alternatives.append({"text": word, "probability": other.probability, "translation": other.translation})
    return {"text": choice.text, "probability": choice.probability, "alternatives": alternatives}


def _page(data: dict[str, Any], title: str, sentences: int) -> str:
    """The page of the first of `sentences` sentences, with a policy to run only its own script and load nothing."""
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    # Four decimals halve the size of the page.
    rounded = json.loads(json.dumps(data), parse_float=lambda number: round(float(number), 4))
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("explorer.css", "explorer.js"))
    return environment.get_template("explorer.html.jinja").render(
        title=title,
        sentences=sentences,
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=json.dumps(rounded, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES),
    )


def _hash(text: str) -> str:
    """A source of a Content-Security-Policy: the digest of an inline element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
