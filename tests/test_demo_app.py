"""The page to try a model on: what it translates, its server, and how it behaves in Chromium."""

import html
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from helpers import call_recipe, free_port, watched_tab
from transformers import pipeline


HOSTILE = "<img src=x onerror=alert(1)> ${alert(2)}"
SEARCH = {"num_beams": 3, "max_new_tokens": 8}


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """The module under test, whose gradio takes seconds to import."""
    pytest.importorskip("gradio", reason="gradio is not installed")
    from vaswani_transformer.visualization import demo

    return demo


def test_each_sentence_has_the_hypotheses_and_the_alignment_of_the_pipeline(demo, loaded_model, tokenizer):
    sentences = ["The old man reads a book.", "Who sleeps?"]
    text, result = demo.translate_text(loaded_model, tokenizer, "  ".join(sentences), **SEARCH)
    options = {"return_alignment": True, "num_return_sequences": SEARCH["num_beams"], **SEARCH}
    expected = pipeline("translation", model=loaded_model, tokenizer=tokenizer)(sentences, **options)
    assert text == "  ".join(hypotheses[0]["translation_text"] for hypotheses in expected)
    assert re.findall('<h2 dir="auto">(.*?)</h2>', result) == sentences
    cells = []
    for hypotheses in expected:
        for each in hypotheses:
            cells += [each["translation_text"], f"{each['score']:.3f}"]
        best = hypotheses[0]
        values = best["word_log_probabilities"]
        for source, target in best["alignment"]:
            cells += [best["words"][target], best["source_words"][source], f"{values[target]:.2f}"]
    assert [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", result, re.DOTALL)] == cells


def test_what_is_shown_is_escaped(demo, loaded_model, tokenizer):
    _, result = demo.translate_text(loaded_model, tokenizer, HOSTILE, **SEARCH)
    assert "<img" not in result
    assert html.escape("<img") in result


def test_the_recipe_serves_where_it_is_told(demo, lively_model, monkeypatch):
    launched = {}
    monkeypatch.setattr(demo.gr.Blocks, "launch", lambda page, **options: launched.update(options, title=page.title))
    call_recipe("demo_app.py", "--model", lively_model, "--server_port", 8000, "--num_beams", 2)
    assert launched["title"].endswith(f"with {lively_model.name}")
    assert (launched["server_name"], launched["server_port"], launched["share"]) == ("127.0.0.1", 8000, False)


@pytest.fixture(scope="module")
def address(demo, loaded_model, tokenizer) -> Iterator[str]:
    """Address of a page that is served."""
    page = demo.demo_page(loaded_model, tokenizer, "a <b>model</b>", **SEARCH)
    _, url, _ = page.launch(server_port=free_port(), prevent_thread_lock=True, quiet=True, **demo.LOOK)
    yield url
    page.close()


@pytest.mark.system
def test_programs_translate_explore_and_are_told_what_is_wrong(address, demo, loaded_model, tokenizer):
    from gradio_client import Client

    client = Client(address, verbose=False)
    expected = demo.translate_text(loaded_model, tokenizer, HOSTILE, **SEARCH)
    assert client.predict(HOSTILE, api_name="/translate") == expected
    frame = client.predict("The <cat>.", api_name="/explore")
    assert frame.startswith('<iframe sandbox="allow-scripts"')
    assert "<cat>" not in frame
    for name in ("/translate", "/explore"):
        with pytest.raises(Exception, match=r"Text: is empty; type a sentence"):
            client.predict(" \n", api_name=name)
    with pytest.raises(Exception, match=r"source: has .* tokens, more than max_tokens, 64; shorten it"):
        client.predict("a b " * 100, api_name="/explore")


@pytest.fixture(params=[1280, 390])
def tab(request, browser, address) -> Iterator[Any]:
    """The page, on a screen and on a phone; no test may make it wider than that."""
    schemes = (address, address.replace("http", "ws"), "data:", "blob:", "about:")
    with watched_tab(browser, request.param, 900, schemes) as tab:
        tab.goto(address)
        tab.get_by_label("Text").first.wait_for()
        yield tab
        assert tab.evaluate("document.documentElement.scrollWidth") == request.param


@pytest.mark.system
@pytest.mark.parametrize("source", ["The cat.", HOSTILE, "שלום עולם"])
def test_a_sentence_is_translated_and_explored_by_keyboard(tab, demo, loaded_model, tokenizer, source):
    tab.get_by_label("Text").first.focus()
    tab.keyboard.type(source)
    for name in ("Translate", "Explore"):
        while not tab.evaluate("document.activeElement.textContent.trim()").startswith(name):
            tab.keyboard.press("Tab")
        tab.keyboard.press("Enter")
    tab.locator(".result td").first.wait_for()
    assert (
        tab.get_by_label("Translation").first.input_value()
        == demo.translate_text(loaded_model, tokenizer, source, **SEARCH)[0]
    )
    assert tab.locator(".result h2").text_content() == source
    assert tab.locator("img[src=x]").count() == 0
    frame = tab.frame_locator("iframe[title=Explorer]")
    frame.locator("html[data-ready]").wait_for(state="attached")
    assert frame.locator("#source").text_content() == source


@pytest.mark.system
@pytest.mark.parametrize("button", ["Translate", "Explore"])
def test_results_of_another_text_are_cleared(tab, loaded_model, tokenizer, button):
    text, details, frame = tab.get_by_label("Text").first, tab.locator(".result"), tab.locator("iframe[title=Explorer]")
    start, explore = (tab.get_by_role("button", name=re.compile(name)) for name in ("Translate", "Explore"))
    text.fill("The cat. Who sleeps?")
    start.click()
    tab.get_by_text("Who sleeps?", exact=True).wait_for()
    explore.click()
    frame.wait_for()
    assert details.count() == 2
    assert frame.content_frame.locator("#source").text_content() == "The cat."
    assert "The first of 2 sentences." in frame.content_frame.locator("header").text_content()
    text.fill(" ")
    (start if button == "Translate" else explore).click()
    tab.get_by_text("is empty; type a sentence").wait_for()
    assert details.count() == frame.count() == 0
    assert tab.get_by_label("Translation").first.input_value() == ""
