"""The page for one sentence: what it contains, and how it behaves in Chromium."""

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import watched_tab

from vaswani_transformer.visualization.alternatives import find_alternatives
from vaswani_transformer.visualization.attention import merge_words, read_attention
from vaswani_transformer.visualization.explorer import explore
from vaswani_transformer.visualization.search_trace import trace_search


HOSTILE = "<img src=x onerror=alert(1)> </script><script>alert(2)</script> <!-- & \u2028"
SEARCH: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def pages(loaded_model, tokenizer, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for name, source in (("plain", "The old man reads a book."), ("hostile", HOSTILE)):
        paths[name] = folder / f"{name}.html"
        explore(loaded_model, tokenizer, source, alternatives=2 if name == "plain" else 1, **SEARCH).save(paths[name])
    return paths


def data_of(page: str) -> dict[str, Any]:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_names_no_address_and_allows_none(pages):
    page = pages["plain"].read_text(encoding="utf-8")
    assert not re.search(r"https?:|//\w|\burl\(|@import|\bsrc=|<link", page)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none';")
    for kind, pattern in (("style", r"<style>(.*?)</style>"), ("script", r"<script>(.*?)</script>")):
        digest = hashlib.sha256(re.search(pattern, page, re.DOTALL)[1].encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy.replace("&#43;", "+")


def test_a_notebook_shows_the_same_page_in_a_frame_that_can_do_nothing_else(loaded_model, tokenizer, pages):
    shown = explore(loaded_model, tokenizer, HOSTILE, alternatives=1, **SEARCH)._repr_html_()
    frame = re.fullmatch('<iframe sandbox="allow-scripts" [^<>]* srcdoc="([^"<>]*)"></iframe>', shown)
    assert html.unescape(frame[1]) == pages["hostile"].read_text(encoding="utf-8")


def test_text_is_escaped(pages):
    page = pages["hostile"].read_text(encoding="utf-8")
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert data_of(page)["source"] == HOSTILE


def test_the_page_has_the_attention_and_the_search(loaded_model, tokenizer, pages):
    data = data_of(pages["plain"].read_text(encoding="utf-8"))
    trace = trace_search(loaded_model, tokenizer, data["source"], **SEARCH)
    weights = read_attention(loaded_model, tokenizer, data["source"], trace.hypotheses[0].tokens)
    for kind, stored in data["attention"].items():
        rows, columns, values = merge_words(weights).select(kind)
        assert (stored["rows"], stored["columns"]) == (rows, columns)
        bytes_ = np.frombuffer(base64.b64decode(stored["weights"]), dtype=np.uint8).reshape(values.shape)
        assert np.abs(bytes_ / 255 - values).max() <= 0.5 / 255 + 1e-6
    assert data["translation"] == trace.hypotheses[0].text
    assert [word["text"] for word in data["words"]] == data["attention"]["cross"]["rows"]
    choices = find_alternatives(loaded_model, tokenizer, data["source"], trace.hypotheses[0].tokens, 2, **SEARCH)
    assert [choice["text"] for word in data["words"] for choice in word["choices"]] == [each.text for each in choices]
    assert any(len(word["choices"]) > 1 for word in data["words"])
    for word in data["words"]:
        product = math.prod(choice["probability"] for choice in word["choices"])
        assert word["probability"] == pytest.approx(product, abs=1e-3)
    assert data["search"]["reason"] == trace.reason
    for step, expected in zip(data["search"]["steps"], trace.steps, strict=True):
        assert step["candidates"] == [pytest.approx(vars(candidate), abs=1e-4) for candidate in expected.candidates]


def test_a_given_translation_is_shown(loaded_model, tokenizer):
    data = data_of(explore(loaded_model, tokenizer, "The man", "Der Mann", alternatives=0, **SEARCH).page)
    assert data["isGiven"]
    assert [word["text"] for word in data["words"]] == ["Der", "Mann", "</s>"]
    assert data["attention"]["cross"]["columns"] == ["The", "man", "</s>"]
    choices = [choice for word in data["words"] for choice in word["choices"]]
    assert len(choices) == len(tokenizer(text_target="Der Mann").input_ids)


def test_of_a_text_the_first_sentence_is_shown(loaded_model, tokenizer):
    text, note = "The old man reads. Who sleeps?", "The first of 2 sentences."
    first = explore(loaded_model, tokenizer, "The old man reads.", alternatives=0, **SEARCH).page
    shown = explore(loaded_model, tokenizer, text, alternatives=0, **SEARCH).page
    assert note in shown
    assert note not in first
    assert data_of(shown) == data_of(first)
    whole = explore(loaded_model, tokenizer, text, "Der Mann liest. Wer?", alternatives=0, **SEARCH).page
    assert data_of(whole)["source"] == text
    assert note not in whole


@pytest.fixture
def tab(browser, pages) -> Iterator[Any]:
    """The page of a plain sentence in a tab."""
    with watched_tab(browser, 900, 700, (pages["plain"].as_uri(),)) as tab:
        tab.goto(pages["plain"].as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        yield tab


@pytest.mark.system
def test_pointing_at_a_word_shows_its_weights(tab):
    data = data_of(tab.content())
    kind = data["attention"]["encoder"]
    tab.locator("[data-kind='encoder']").click()
    tab.locator("#rows [role=option]").nth(2).hover()
    weights = np.frombuffer(base64.b64decode(kind["weights"]), dtype=np.uint8)
    mean = weights.reshape(kind["layers"], kind["heads"], len(kind["rows"]), -1)[-1, :, 2].mean(0)
    told = tab.locator("#attention-told").text_content()
    assert told.startswith(f"{kind['rows'][2]} attends to {kind['columns'][mean.argmax()] or '·'} ")
    assert tab.locator("#rows [aria-selected=true]").count() == 1
    tab.locator("#rows [role=option]").nth(2).focus()
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#attention-told").text_content().startswith(f"{kind['rows'][3]} attends to")


@pytest.mark.system
def test_choosing_a_word_shows_its_alternatives(tab):
    words = data_of(tab.content())["words"]
    place = next(index for index, word in enumerate(words) if len(word["choices"]) > 1)
    tab.locator("#words button").nth(place).click()
    told = [" ".join(text.split()) for text in tab.locator("#alternatives .other").all_text_contents()]
    others = [other for choice in words[place]["choices"] for other in choice["alternatives"]]
    assert len(others) > 2
    for text, other in zip(told, others, strict=True):
        assert text.startswith(other["text"] or "·")
        assert text.endswith(" ".join(other["translation"].split()))


@pytest.mark.system
def test_the_tree_follows_arrow_keys_and_tells_what_became_of_a_candidate(tab):
    steps = data_of(tab.content())["search"]["steps"]
    assert len(steps) > 7
    assert 0 < tab.locator(".node").count() < sum(len(step["candidates"]) for step in steps)  # only those in view
    tab.locator(".node").first.focus()
    beaten = next(index for index, row in enumerate(steps[0]["candidates"]) if row["fate"] == "beaten")
    for _ in range(beaten):
        tab.keyboard.press("ArrowDown")
    assert "Dropped: 3 candidates that go on are better." in tab.locator("#candidate").text_content()
    tab.keyboard.press("End")
    assert f"Step {len(steps)}" in tab.locator("#tree").text_content()
    tab.keyboard.press("Home")
    assert "Step 1, candidate 1" in tab.locator("#candidate").text_content()
    tab.keyboard.press("ArrowRight")
    assert "Step 2, candidate" in tab.locator("#candidate").text_content()
    assert tab.evaluate("document.activeElement.className").startswith("node")
