"""A page to try a model, in gradio: translations with their words' probabilities and alternatives, and the explorer."""

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from heapq import nlargest
from operator import attrgetter
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from jinja2 import Environment, FileSystemLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.languages_vaswani import Directions, language_name, language_tag, writes_spaces
from ..model.scores_vaswani import TranslationScorer, alignment_heads, token_words
from ..model.sentences_vaswani import Paragraph
from ..model.translation_vaswani import Translation, in_order, translate_in_batches
from .alternatives import Alternative, find_alternatives
from .explorer import explore


_FOLDER = Path(__file__).parent
_PAGES = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True)

_EXPLORED_TOKENS = 64  # longest sentence to explore: each of its tokens takes two searches
_ALTERNATIVES = 5  # shown for a word
_PROBABILITY = attrgetter("probability")

# Least confidence, the chrF to expect, and what it means to a reader.
_RATINGS = ((70, "good", "Probably right"), (50, "fair", "May be inexact"), (0, "poor", "Check this"))

# The text to translate in the other direction: the translation, if it is still shown.
_SWAP = (
    """text => [...document.querySelectorAll("#result .translation")].map(each => each.textContent).join(" ") || text"""
)

# gradio's grey and orange have too little contrast, its fonts come from a server, and its text areas run left to right.
LOOK: dict[str, Any] = {
    "theme": gr.themes.Default(primary_hue="blue", font="system-ui", font_mono="monospace").set(
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_title_text_color="*neutral_600",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
    ),
    "css": (_FOLDER / "demo.css").read_text(encoding="utf-8"),
    "footer_links": [],
}


@dataclass(frozen=True)
class ShownSentence:
    """A sentence on the page.

    Attributes:
        source: The sentence, with its tag if it has one.
        translation: Its translation, with scores.
        is_chosen: Whether the reader chose it among the alternatives.
        open_word: The word whose alternatives are listed; None if no list is open.
        alternatives: The alternatives to that word, the most probable first.
    """

    source: str
    translation: Translation
    is_chosen: bool = False
    open_word: int | None = None
    alternatives: tuple[Alternative, ...] = ()


class Translator:
    """Translates texts for the page, and finds alternatives to words; `options` are keywords of `generate`.

    `tags` maps the name of each direction on the page to the direction's tag.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any) -> None:
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.directions = Directions(model.config)
        codes = getattr(model.config, "language_tags", None)
        tags = map(language_tag, codes) if codes else [None]
        self.tags = {_direction_name(self.directions, tag): tag for tag in tags}
        self.aligns = getattr(model.config, "target_vocab_size", None) is None  # alignment needs one vocabulary

    def translate(self, text: str, tag: str | None) -> list[ShownSentence]:
        """Translate a text sentence by sentence.

        Sentences in capitals are lowered first, so that their alternatives match.
        """
        sentences = Paragraph.split(self.directions, self.directions.tagged(text.strip(), tag)).sentences
        sentences = [self.directions.lower_capitals(sentence) or sentence for sentence in sentences]
        options = {**self.options, "return_scores": True, "return_alignment": self.aligns}
        translations = in_order(translate_in_batches(self.model, self.tokenizer, sentences, **options))
        return [ShownSentence(*pair) for pair in zip(sentences, (best for best, *_ in translations), strict=True)]

    def open_word(self, shown: ShownSentence, word: int) -> ShownSentence:
        """List the alternatives to a word, or close their list."""
        if word == shown.open_word:
            return replace(shown, open_word=None, alternatives=())
        ids = shown.translation.token_ids[1:]
        positions = [position for position, each in enumerate(token_words(self.tokenizer, ids)[0]) if each == word]
        choices = find_alternatives(
            self.model, self.tokenizer, shown.source, ids, _ALTERNATIVES, positions, **self.options
        )
        begun, others = 1.0, []  # the probability of the word's tokens so far
        for choice in choices:
            others += [replace(each, probability=begun * each.probability) for each in choice.alternatives]
            begun *= choice.probability
        by_text = {each.translation: each for each in sorted(others, key=_PROBABILITY)}
        by_text.pop(shown.translation.text, None)
        best = nlargest(_ALTERNATIVES, by_text.values(), key=_PROBABILITY)
        return replace(shown, open_word=word, alternatives=tuple(best))

    def choose(self, shown: ShownSentence, alternative: Alternative) -> ShownSentence:
        """Put the translation that follows from an alternative in place of the shown one."""
        inputs = self.tokenizer([shown.source], return_tensors="pt").to(self.model.device)
        ids = [self.model.generation_config.decoder_start_token_id, *alternative.tokens]
        heads = alignment_heads(self.model) if self.aligns else None
        scorer = TranslationScorer(self.model, self.tokenizer, 1.0, "gnmt", heads)
        (score,) = scorer.score(inputs, torch.tensor([ids], device=self.model.device))
        return ShownSentence(shown.source, Translation(alternative.translation, ids, score), is_chosen=True)

    def explore(self, shown: ShownSentence) -> str:
        """The explorer of a sentence and its shown translation, in a frame."""
        target = shown.translation.text if shown.is_chosen else None
        options = {"alternatives": 2, "max_tokens": _EXPLORED_TOKENS, **self.options}
        return explore(self.model, self.tokenizer, shown.source, target, **options)._repr_html_()

    def on_translate(self, text: str, direction: str) -> tuple[str, list[ShownSentence], str]:
        """The page and the sentences of a text, without an explorer."""
        try:
            sentences = self.translate(text, self.tags[direction]) if text.strip() else []
        except ValueError as error:
            return self.render([], str(error)), [], ""
        return self.render(sentences), sentences, ""

    def on_click(self, sentences: list[ShownSentence], event: gr.EventData) -> tuple[Any, ...]:
        """Open or close the alternatives to a word, or choose one."""
        index, changed = int(event.sentence), list(sentences)
        if event.choice is None:
            changed[index] = self.open_word(changed[index], int(event.word))
            return self.render(changed), changed, gr.skip()
        changed[index] = self.choose(changed[index], changed[index].alternatives[int(event.choice)])
        return self.render(changed), changed, ""  # the explorer shows the translation before

    def on_explore(self, sentences: list[ShownSentence], event: gr.EventData) -> str:
        """The explorer of a sentence, or the reason why there is none."""
        try:
            return self.explore(sentences[int(event.sentence)])
        except ValueError as error:
            return f'<p role="alert">{html.escape(str(error))}</p>'

    def render(self, sentences: Sequence[ShownSentence], error: str = "") -> str:
        """The sentences as HTML; without any, a hint."""
        page = _PAGES.get_template("demo.html.jinja")
        return page.render(sentences=[*map(self._displayed, sentences)], error=error)

    def _displayed(self, shown: ShownSentence) -> dict[str, Any]:
        """The parts of a sentence that the template shows."""
        translation, score = shown.translation, shown.translation.score
        tag, source = self.directions.split(shown.source)
        links = {target: place for place, target in score.alignment or ()}
        words = zip(_spaced(translation.text, score.words), score.word_log_probabilities, strict=True)
        return {
            "source": source,
            "source_words": score.source_words if links else None,
            "space": " " if writes_spaces(self.directions.languages(tag)[0]) else "",
            "words": [
                (gap, word, links.get(place), math.exp(value)) for place, ((gap, word), value) in enumerate(words)
            ],
            "rating": self._rating(shown),
            "open_word": shown.open_word,
            "alternatives": [[*_changes(translation.text, each.translation)] for each in shown.alternatives],
        }

    def _rating(self, shown: ShownSentence) -> tuple[str, str] | None:
        """The class and the words of a rating; None if the model's confidence was never measured."""
        if shown.is_chosen:
            return "chosen", "Your choice"
        if getattr(self.model.config, "confidence_curve", None) is None:
            return None
        confidence = shown.translation.score.confidence
        if confidence is None:
            return "fair", "Not rated: unusual length or text"
        return next((look, words) for least, look, words in _RATINGS if confidence >= least)


def demo_page(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    target_language: str | None = None,
    about: str = "",
    examples: Sequence[str] = (),
    **options: Any,
) -> gr.Blocks:
    """Create the page of a model, which `launch(**LOOK)` serves.

    Args:
        model, tokenizer: The model, in evaluation mode, and its tokenizer.
        name: The model's name.
        target_language: Language to translate into at first; by default that of the configuration.
        about: A sentence about the model, such as on its training text.
        examples: Texts to click, in the language of the first direction. The page begins with the first two.
        options: Keywords of `generate`.
    """
    translator = Translator(model, tokenizer, **options)
    tags = translator.tags
    tag = translator.directions.tag(None, target_language or getattr(model.config, "target_language", None))
    first = next(name for name, each in tags.items() if tag in (None, each))
    title = f"{'Translate' if len(tags) > 1 else first or 'Translate'} with {name}"

    text = "\n".join(examples[:2])
    start_page, sentences, _ = translator.on_translate(text, first)
    result_script = (_FOLDER / "demo.js").read_text(encoding="utf-8")
    explorer_script = "watch('value', () => element.querySelector('iframe')?.scrollIntoView({ behavior: 'smooth' }));"
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.HTML(f"<h1>{html.escape(title)}</h1><p>{html.escape(about)}</p>")
        with gr.Row():
            with gr.Column():
                direction = gr.Radio([*tags], value=first, label="Direction", visible=len(tags) > 1)
                hint = "Press Shift+Enter to translate."
                source = gr.Textbox(text, label="Text", lines=4, max_length=2000, placeholder=hint, elem_id="source")
                start = gr.Button("Translate", variant="primary")
                samples = [[example] for example in examples]
                sample = gr.Dataset(
                    components=[gr.Textbox(visible=False)], samples=samples, label="Examples", visible=bool(samples)
                )
            result = gr.HTML(start_page, elem_id="result", apply_default_css=False, js_on_load=result_script)
        explorer = gr.HTML(elem_id="explorer", js_on_load=explorer_script)
        shown = gr.State(sentences)

        hidden: dict[str, Any] = {"api_visibility": "private"}
        translated: dict[str, Any] = {"inputs": [source, direction], "outputs": [result, shown, explorer], **hidden}
        gr.on([start.click, source.submit], translator.on_translate, **translated)
        swap = _SWAP if len(tags) == 2 else "text => text"
        direction.input(None, source, source, js=swap, **hidden).then(translator.on_translate, **translated)
        use = sample.click(lambda row: (row[0], first), sample, [source, direction], **hidden)
        use.then(translator.on_translate, **translated)
        result.click(translator.on_click, shown, [result, shown, explorer], **hidden)
        result.select(translator.on_explore, shown, explorer, **hidden)
    return page


def _direction_name(directions: Directions, tag: str | None) -> str:
    """The direction of a tag in words, such as "German to English"; empty if its languages are unknown."""
    source, target = (code and language_name(code) for code in directions.languages(tag))
    return " ".join([*([source] if source else []), *([f"to {target}"] if target else [])])


def _spaced(text: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The words of a text, each with the white space before it."""
    position = 0
    for word in words:
        start = text.index(word, position)
        yield text[position:start], word
        position = start + len(word)


def _changes(before: str, after: str) -> Iterator[tuple[bool, str]]:
    """The words of a translation in runs, each with whether it differs from the one before."""
    old, new = before.split(), after.split()
    for kind, _, _, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield kind != "equal", " ".join(new[start:stop])
