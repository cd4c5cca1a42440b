"""The page of a model, in gradio. Text of users and of the model is never shown as HTML."""

import base64
import html
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

import gradio as gr

from ...model.languages_vaswani import language_name
from ..explorer import ExplorerView
from .translator import DemoTranslator, RefusedError, TranslatedSentence


_FONTS = ("system-ui", "sans-serif")  # of the reader's machine
_ONE_AT_A_TIME: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "model"}
_STYLE = """
.alignment { overflow-x: auto; background: white; border-radius: 8px; }
.alignment img { max-width: none; display: block; }
.found { width: 100%; border-collapse: collapse; overflow-wrap: anywhere; }
.found th, .found td { text-align: start; vertical-align: top; padding: 0.3rem 0.8rem; }
.found th, .found td { border: 1px solid var(--border-color-primary); }
.found th:first-child, .found td:first-child { white-space: nowrap; overflow-wrap: normal; }
footer { flex-wrap: wrap; }
"""
_SECONDS_KEPT = 3600  # of files that users gave or got
_SECONDS_SHOWN = 10  # of messages


def build_page(translator: DemoTranslator, name: str, examples: Sequence[str] = ()) -> gr.Blocks:
    """The page, with its queue.

    Args:
        translator: What it shows.
        name: Name of the model.
        examples: Texts to try.
    """
    known = [language_name(code) for code in translator.languages if code]
    title = f"{' to '.join(known)} with {name}" if len(known) == 2 else f"Translate with {name}"
    with gr.Blocks(title=title, analytics_enabled=False, delete_cache=(_SECONDS_KEPT,) * 2) as page:
        gr.HTML(f"<h1>{html.escape(title)}</h1>")
        with gr.Tab("Text"):
            _text_tab(translator, examples)
        with gr.Tab("File"):
            _file_tab(translator)
    # Without the queue, requests would not be limited.
    return page.queue(max_size=translator.limits.max_queue, default_concurrency_limit=1, api_open=False)


def serve(page: gr.Blocks, translator: DemoTranslator, host: str, port: int, is_blocking: bool = True) -> str:
    """Serve a page on an address; returns its URL, at once unless `is_blocking`.

    Raises:
        OSError: The port is in use.
    """
    # Larger uploads end at once; a file a little over the limit is refused by the page, which says why.
    largest = 2 * 1000 * translator.limits.max_file_kilobytes
    _, url, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        prevent_thread_lock=not is_blocking,
        max_file_size=largest,
        ssr_mode=False,
        footer_links=["gradio"],
        theme=gr.themes.Default(font=_FONTS, font_mono=("ui-monospace", "monospace")),
        css=_STYLE,
        quiet=True,
    )
    return url


def _text_tab(translator: DemoTranslator, examples: Sequence[str]) -> None:
    limits = translator.limits
    with gr.Row():
        about = f"Sentences of at most {limits.max_tokens:,} tokens. Shift and Enter translate them."
        source = gr.Textbox(label="Text", lines=3, max_lines=8, info=about, min_width=300)
        target = gr.Textbox(label="Translation", lines=3, max_lines=8, interactive=False, min_width=300)
    with gr.Row():
        start = gr.Button("Translate", variant="primary", min_width=120)
        stop = gr.Button("Stop", min_width=80)
    if examples:
        gr.Examples([[text] for text in examples], source, label="Sentences of the test set", api_visibility="private")
    about = "Final hypotheses of the beam search. Score: log-probability / length penalty. The paler a word, the less "
    about += "probable; its log-probability appears under the pointer."
    if getattr(translator.model.config, "confidence_curve", None) is not None:
        about += " Confidence: the chrF to expect of the first, from 0 to 100, where it was measured."
    gr.HTML(f"<h2>Hypotheses</h2><p>{about}</p>")
    found = gr.HTML()
    gr.HTML("<h2>Alignment</h2><p>Encoder-decoder attention, mean of all layers and heads; darker is more.</p>")
    alignment = gr.HTML()
    about = f"Attention, beam search and alternatives of a sentence of at most {limits.max_explored_tokens:,} tokens."
    gr.HTML(f"<h2>Explorer</h2><p>{about}</p>")
    explore = gr.Button("Explore this sentence")
    download = gr.DownloadButton("Download the explorer page", visible=False)
    explorer = gr.HTML()
    hidden = gr.DownloadButton(visible=False)

    @_refusing("", "", "")
    def translate(text: str) -> Iterator[tuple[Any, ...]]:
        for found in translator.translate(text):
            yield found.text, "", ""
        _warn(found.warning)
        tables, images = "", ""
        for each in found.sentences:
            heading = f"<h3>{html.escape(each.source)}</h3>" if len(found.sentences) > 1 else ""
            tables += heading + _table(each)
            images += heading + _image(translator, each)
        yield found.text, tables, images

    @_refusing("", hidden)
    def show_explorer(text: str) -> Iterator[tuple[Any, ...]]:
        view = ExplorerView(translator.explore(text))
        with TemporaryDirectory() as folder:
            file = Path(folder, "explorer.html")
            file.write_text(view.page, encoding="utf-8")
            yield f'<div class="explorer">{view._repr_html_()}</div>', gr.DownloadButton(value=str(file), visible=True)

    begins = [start.click, source.submit]
    # Clears the explorer, whose page is of another text.
    gr.on(begins, lambda: ("", hidden), None, [explorer, download], queue=False, api_visibility="private")
    begun = gr.on(begins, translate, source, [target, found, alignment], api_name="translate", **_ONE_AT_A_TIME)
    explored = explore.click(show_explorer, source, [explorer, download], api_name="explore", **_ONE_AT_A_TIME)
    stop.click(None, cancels=[begun, explored])


def _file_tab(translator: DemoTranslator) -> None:
    limits = translator.limits
    label = f"UTF-8 text, translated line by line: at most {limits.max_lines:,} lines, {limits.max_file_kilobytes:,} kB"
    upload = gr.File(label=label, file_count="single", type="filepath", height=160)
    with gr.Row():
        start = gr.Button("Translate the file", variant="primary", min_width=120)
        stop = gr.Button("Stop", min_width=80)
    progress = gr.Textbox(label="Progress", interactive=False)
    download = gr.File(label="Translations", interactive=False)

    @_refusing("", None)
    def translate_file(path: str | None) -> Iterator[tuple[str, str | None]]:
        if path is None:
            raise RefusedError("There is no file; choose one.")
        for state in translator.translate_file(path):
            told = f"{state.done:,} of {state.total:,} lines translated"
            if state.text is None:
                yield told, None
                continue
            with TemporaryDirectory() as folder:  # gradio copies the file before it goes on
                file = Path(folder, "translations.txt")
                file.write_text(state.text, encoding="utf-8")
                _warn(state.warning)
                yield told, str(file)

    begun = start.click(translate_file, upload, [progress, download], api_name="translate_file", **_ONE_AT_A_TIME)
    stop.click(None, cancels=[begun])


def _refusing(*cleared: Any) -> Callable[[Callable[..., Iterator[Any]]], Callable[..., Iterator[Any]]]:
    """Show a refusal as a message of the page, and the outputs `cleared` instead of those of an earlier text."""

    def decorate(steps: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @wraps(steps)
        def shown(*arguments: Any) -> Iterator[Any]:
            try:
                yield from steps(*arguments)
            except RefusedError as error:
                yield cleared
                raise gr.Error(html.escape(str(error)), duration=_SECONDS_SHOWN, print_exception=False) from None

        return shown

    return decorate


def _warn(warning: str | None) -> None:
    if warning:
        gr.Warning(html.escape(warning), duration=_SECONDS_SHOWN)


def _table(sentence: TranslatedSentence) -> str:
    names, rows = ["Score", "Hypothesis"], []
    has_confidence = sentence.scores[0].confidence is not None
    if has_confidence:
        names.insert(1, "Confidence")
    for found, score in zip(sentence.hypotheses, sentence.scores, strict=True):
        shown = "" if score.confidence is None else f"{score.confidence:.0f}"
        confidence = f"<td>{shown}</td>" if has_confidence else ""
        text, words, values = html.escape(found.text), found.text.split(), score.word_log_probabilities
        if len(words) == len(values):  # always, unless a tokenizer decodes the parts of a text otherwise than the whole
            text = " ".join(map(_word, words, values))
        rows.append(f"<tr><td>{found.score:.4f}</td>{confidence}<td>{text}</td></tr>")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<table class="found"><tr>{head}</tr>{"".join(rows)}</table>'


def _word(word: str, log_probability: float) -> str:
    """A word, paler the less probable it is, but legible."""
    opacity = 0.4 + 0.6 * math.exp(log_probability)
    return f'<span title="{log_probability:.2f}" style="opacity: {opacity:.2f}">{html.escape(word)}</span>'


def _image(translator: DemoTranslator, sentence: TranslatedSentence) -> str:
    """The alignment in a frame that scrolls. In an image, no script of an SVG runs."""
    picture = translator.align(sentence.source, sentence.hypotheses[0].tokens)
    data = base64.b64encode(picture._repr_svg_().encode()).decode("ascii")
    alternative = "Encoder-decoder attention as a heat map"
    return f'<div class="alignment"><img alt="{alternative}" src="data:image/svg+xml;base64,{data}"></div>'
