"""A page to explore one translation: attention (3.2), beam search (6.1), and alternatives to each token."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.batches_vaswani import for_targets
from .alternatives import Choice, find_alternatives
from .attention import AttentionWeights, read_attention, require_text, source_text
from .search_trace import SearchTrace, trace_search


_FOLDER = Path(__file__).parent

# Characters that could end a script element, or a line of a script.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def write_explorer(
    path: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    alternatives: int = 4,
    **options: Any,
) -> None:
    """Write one HTML file that shows how a model translates a sentence. It needs no network.

    The weights of the attentions are rounded to 1/255.

    Args:
        path: The file to write.
        model: A model of this package, in evaluation mode.
        tokenizer: Its tokenizer.
        source: The sentence.
        target: A translation to show attention and alternatives of; by default the one that the search finds.
        alternatives: Alternatives of each token of the translation; 0 saves their searches.
        options: For `generate`, such as `num_beams` and `length_penalty`.

    Raises:
        TypeError: A sentence is no string.
        ValueError: A sentence is empty, is no valid Unicode, or has more tokens than the model has positions; or
            `num_beams` is 1.
    """
    Path(path).write_text(explorer_page(model, tokenizer, source, target, alternatives, **options), encoding="utf-8")


def explorer_page(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    alternatives: int = 4,
    **options: Any,
) -> str:
    """The HTML that `write_explorer` writes."""
    require_text("source", source)
    given = None if target is None else read_attention(model, tokenizer, source, target)
    text = source_text(model, source)
    trace = trace_search(model, tokenizer, text, **options)
    tokens = for_targets(tokenizer)(text_target=target).input_ids if given else trace.hypotheses[0].tokens
    weights = given or read_attention(model, tokenizer, source, tokens)
    choices = find_alternatives(model, tokenizer, text, tokens, alternatives, **options)
    data = {
        "source": source,
        "translation": target if given else trace.hypotheses[0].text,
        "isGiven": given is not None,
        "attention": _attention(weights),
        "search": _search(trace),
        "choices": [_choice(choice) for choice in choices],
    }
    return _page(data, f"{source[:80]} – how it is translated")


def _attention(weights: AttentionWeights) -> dict[str, Any]:
    """Tokens and weights of the attentions."""
    kinds = {}
    for kind in ("cross", "encoder", "decoder"):
        rows, columns, values = weights.select(kind)
        row_continues, column_continues = weights.select_continues(kind)
        quantised = np.rint(values * 255).astype(np.uint8)  # [layers, heads, rows, columns]
        kinds[kind] = {
            "rows": rows,
            "columns": columns,
            "rowContinues": row_continues,
            "columnContinues": column_continues,
            "layers": values.shape[0],
            "heads": values.shape[1],
            "weights": base64.b64encode(quantised.tobytes()).decode("ascii"),
        }
    return {"target": weights.target, "continues": weights.target_continues, "kinds": kinds}


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


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "text": choice.text,
        "probability": _rounded(choice.probability),
        "alternatives": [
            {"text": other.text, "probability": _rounded(other.probability), "translation": other.translation}
            for other in choice.alternatives
        ],
    }


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
