"""A page to try a model, in gradio: translations of a text, with confidence and alignment, and the explorer."""

import html
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
from jinja2 import Environment, FileSystemLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.languages_vaswani import Directions, Paragraph, language_name
from ..model.pipeline_vaswani import in_order, translate_in_batches
from .explorer import explore


_EXPLORED_TOKENS = 64  # longest sentence to explore: each of its tokens takes two searches

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
    "css": """
.gradio-container textarea { unicode-bidi: plaintext; text-align: start; }
.gradio-container :focus-visible { outline: 3px solid var(--color-accent) !important; outline-offset: 1px; }
.result { margin-top: 1.5rem; overflow: auto hidden; }
.result h2 { font-size: 1.15rem; overflow-wrap: anywhere; }
.result table { border-collapse: collapse; margin: 0.5rem 0; min-width: min(100%, 27rem); }
.result caption { text-align: start; font-weight: 600; }
.result th, .result td { border: 1px solid var(--border-color-primary); padding: 0.3rem 0.6rem; text-align: start; }
.result td { font-variant-numeric: tabular-nums; }
""",
}


def demo_page(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    target_language: str | None = None,
    **options: Any,
) -> gr.Blocks:
    """Create the page of a model, which `launch(**LOOK)` serves.

    A model with several directions needs `target_language`; `options` are keywords of `generate`.
    """
    directions = Directions(model.config)
    tag = directions.tag(None, target_language, is_required=True)
    languages = " to ".join(language_name(code) for code in directions.languages(tag) if code)
    title = f"{languages or 'Translate'} with {name}"

    def tagged(text: str) -> str:
        if not text.strip():
            raise ValueError("Text: is empty; type a sentence")
        return directions.tagged(text.strip(), tag)

    def translate(text: str) -> tuple[str, str]:
        with _shown_errors():
            return translate_text(model, tokenizer, tagged(text), **options)

    def show_explorer(text: str) -> str:
        with _shown_errors():
            view = explore(model, tokenizer, tagged(text), alternatives=2, max_tokens=_EXPLORED_TOKENS, **options)
            return view._repr_html_()

    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.HTML(f"<h1>{html.escape(title)}</h1>")
        with gr.Row():
            with gr.Column():
                source = gr.Textbox(
                    label="Text", lines=4, max_length=2000, placeholder="Press Shift+Enter to translate."
                )
                start = gr.Button("Translate", variant="primary")
            with gr.Column():
                translation = gr.Textbox(label="Translation", lines=4, interactive=False)
                begin = gr.Button("Explore search and attention")
        details, explorer, shown = gr.HTML(), gr.HTML(), gr.State("")  # `shown` is the text of the results
        results = [translation, details, explorer]

        def clear_other(text: str, shown: str) -> list[Any]:
            """Clear the results of another text, which would stay if the new one failed."""
            return [*([gr.skip() if text == shown else ""] * len(results)), text]

        clear: dict[str, Any] = {"inputs": [source, shown], "outputs": [*results, shown], "api_visibility": "private"}
        translating = gr.on([start.click, source.submit], clear_other, **clear)
        translating.then(translate, source, [translation, details], api_name="translate")
        begin.click(clear_other, **clear).then(show_explorer, source, explorer, api_name="explore")
    return page


def translate_text(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, **options: Any
) -> tuple[str, str]:
    """The translation of a text, and HTML with all hypotheses of each sentence and the best one's alignment."""
    directions = Directions(model.config)
    paragraph = Paragraph.split(directions, text)
    beams = options.get("num_beams") or model.generation_config.num_beams or 1
    has_one_vocabulary = getattr(model.config, "target_vocab_size", None) is None  # alignment needs it
    options |= {"return_scores": True, "return_alignment": has_one_vocabulary, "num_return_sequences": beams}
    translations = in_order(translate_in_batches(model, tokenizer, paragraph.sentences, **options))
    sources = [directions.split(sentence)[1] for sentence in paragraph.sentences]
    pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    is_measured = getattr(model.config, "confidence_curve", None) is not None
    result = pages.get_template("demo.html.jinja").render(
        sentences=zip(sources, translations, strict=True), is_measured=is_measured
    )
    return paragraph.join([hypotheses[0].text for hypotheses in translations]), result


@contextmanager
def _shown_errors() -> Iterator[None]:
    """Show errors of a text in the page, which interprets messages as HTML."""
    try:
        yield
    except ValueError as error:
        raise gr.Error(html.escape(str(error)), print_exception=False) from None
