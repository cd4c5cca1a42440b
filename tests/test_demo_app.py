"""The page to try a model on: what it translates, its server, and how it behaves in Chromium."""

import html
import json
import math
import re
import shutil
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from helpers import REPOSITORY, call_recipe, free_port, watched_tab
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from vaswani_transformer.model.scores_vaswani import token_words
from vaswani_transformer.visualization.alternatives import Alternative


HOSTILE = "<img src=x onerror=alert(1)> ${alert(2)}"
SEARCH = {"num_beams": 3, "max_new_tokens": 8}
EXAMPLES = ["Who sleeps?", "The old man reads a book.", "The cat sees Tom."]


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """The module under test, whose gradio takes seconds to import."""
    pytest.importorskip("gradio", reason="gradio is not installed")
    from vaswani_transformer.visualization import demo

    return demo


@pytest.fixture
def translator(demo, loaded_model, tokenizer) -> Any:
    return demo.Translator(loaded_model, tokenizer, **SEARCH)


def test_a_sentence_in_capitals_and_its_alternatives_are_in_lower_case(translator):
    _, shown = translator.translate("Who sleeps? THE OLD MAN READS.", None)
    assert shown.source == "the old man reads."
    assert not shown.translation.text.isupper()
    assert not any(each.translation.isupper() for each in translator.open_word(shown, 0).alternatives)


def test_each_sentence_has_the_words_probabilities_and_links_of_the_pipeline(translator, loaded_model, tokenizer):
    sentences = ["The old man reads a book.", "Who sleeps?"]
    shown = translator.translate("  ".join(sentences), None)
    expected = pipeline("translation", model=loaded_model, tokenizer=tokenizer)(
        sentences, return_alignment=True, **SEARCH
    )
    assert [each.source for each in shown] == sentences
    assert [each.translation.text for each in shown] == [each["translation_text"] for each in expected]
    page = translator.render(shown)
    words = re.findall(
        r'data-sentence="(\d)" data-word="(\d+)".*? data-link="(\d+)".*? title="(.*?)".*?>(.*?)</span>', page
    )
    for sentence, word, link, title, text in words:
        record = expected[int(sentence)]
        assert html.unescape(text) == record["words"][int(word)]
        assert [int(link), int(word)] in [[*pair] for pair in record["alignment"]]
        assert title in {f"{100 * math.exp(record['word_log_probabilities'][int(word)]):.0f} %", "under 1 %"}
    assert len(words) == sum(len(each["words"]) for each in expected)


def test_alternatives_to_a_word_keep_the_words_before_it(translator, tokenizer):
    (shown,) = translator.translate("The old man reads a book.", None)
    ids = tuple(shown.translation.token_ids[1:])
    start = token_words(tokenizer, ids)[0].index(1)
    assert start > 0
    opened = translator.open_word(shown, 1)
    probabilities = [each.probability for each in opened.alternatives]
    assert len(probabilities) == 5
    assert probabilities == sorted(probabilities, reverse=True)
    assert len({shown.translation.text, *(each.translation for each in opened.alternatives)}) == 6
    assert {each.tokens[:start] for each in opened.alternatives} == {ids[:start]}
    assert translator.open_word(opened, 1) == shown  # a second click closes the list


def test_a_chosen_translation_is_shown_with_its_scores(translator):
    (shown,) = translator.translate("The old man reads a book.", None)
    same = Alternative(1.0, tuple(shown.translation.token_ids[1:]), shown.translation.text)
    chosen = translator.choose(shown, same).translation
    assert chosen.token_ids == shown.translation.token_ids
    assert chosen.score.words == shown.translation.score.words
    assert chosen.score.alignment == shown.translation.score.alignment
    assert chosen.score.word_log_probabilities == pytest.approx(shown.translation.score.word_log_probabilities)
    alternative = translator.open_word(shown, 1).alternatives[0]
    other = translator.choose(shown, alternative)
    assert other.translation.text == alternative.translation
    assert "Your choice" in translator.render([other])


@pytest.mark.parametrize(
    ("chrf", "words"), [(70.0, "Probably right"), (50.0, "May be inexact"), (49.0, "Check this"), (None, "Not rated")]
)
def test_confidence_is_told_in_words(translator, monkeypatch, chrf, words):
    curve = [[-99.0, 1.0], [-98.0, 1.0]] if chrf is None else [[-99.0, chrf], [0.0, chrf]]
    monkeypatch.setattr(translator.model.config, "confidence_curve", curve)
    monkeypatch.setattr(translator.model.config, "confidence_search", SEARCH)
    page = translator.render(translator.translate("Who sleeps?", None))
    assert re.search('<span class="rating .*?">(.*?)</span>', page)[1].startswith(words)


def test_what_is_shown_is_escaped(translator):
    page = translator.render(translator.translate(HOSTILE, None), error=HOSTILE)
    assert "<img" not in page
    assert html.escape("<img") in page


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_recipe_shows_the_card_and_serves_where_it_is_told(demo, two_way, tmp_path, monkeypatch, language):
    model = shutil.copytree(two_way, tmp_path / "model")
    record = json.loads((REPOSITORY / "model_cards/tatoeba-de-en/all_results.json").read_text(encoding="utf-8"))
    (model / "all_results.json").write_text(json.dumps(record), encoding="utf-8")
    launched = {}
    monkeypatch.setattr(demo.gr.Blocks, "launch", lambda page, **options: launched.update(options, page=page))
    call_recipe("demo_app.py", "--model", model, "--server_port", 8000, "--num_beams", 2, "--target_language", language)
    assert launched["page"].title == "Translate with model"
    assert (launched["server_name"], launched["server_port"], launched["share"]) == ("127.0.0.1", 8000, False)
    components = {each["props"].get("label"): each["props"] for each in launched["page"].config["components"]}
    sources = [example["source" if language == "en" else "reference"] for example in record["examples"]]
    assert components["Examples"]["samples"] == [[each] for each in reversed(sources)]
    assert components["Direction"]["value"] == {"en": "German to English", "de": "English to German"}[language]
    assert "Trained on short everyday sentences:" in str(launched["page"].config)


@pytest.fixture(scope="module")
def address(demo, two_way) -> Iterator[str]:
    """Address of a page that is served."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(two_way).eval(), AutoTokenizer.from_pretrained(two_way)
    page = demo.demo_page(model, tokenizer, "a <b>model</b>", examples=EXAMPLES, num_beams=3)
    _, url, _ = page.launch(server_port=free_port(), prevent_thread_lock=True, quiet=True, **demo.LOOK)
    yield url
    page.close()


@pytest.fixture(params=[1280, 390])
def tab(request, browser, address) -> Iterator[Any]:
    """The page, on a screen and on a phone; no test may make it wider than that."""
    schemes = (address, address.replace("http", "ws"), "data:", "blob:", "about:")
    with watched_tab(browser, request.param, 900, schemes) as tab:
        tab.goto(address)
        tab.locator(".sentence").first.wait_for()
        yield tab
        assert tab.evaluate("document.documentElement.scrollWidth") == request.param


def sources(tab: Any) -> list[str]:
    """The source sentences on the page."""
    return [each.get_attribute("data-source") for each in tab.locator(".sentence").all() if each.is_visible()]


@pytest.mark.system
@pytest.mark.parametrize("source", ["The cat.", HOSTILE, "שלום עולם"])
def test_a_sentence_is_translated_changed_and_explored_by_keyboard(tab, source):
    def press(selector: str) -> None:
        while not tab.evaluate("selector => document.activeElement.matches(selector)", selector):
            tab.keyboard.press("Tab")
        tab.keyboard.press("Enter")

    assert sources(tab) == EXAMPLES[:2]
    tab.get_by_label("Text").first.focus()
    tab.keyboard.press("Control+A")
    tab.keyboard.type(source)
    press("button.primary")
    tab.locator(f".sentence[data-source='{source}']").wait_for()
    direction = tab.locator(".source").evaluate("element => getComputedStyle(element).direction")
    assert direction == ("rtl" if source[0] == "ש" else "ltr")
    press("[data-word='0']")
    other = tab.locator("[data-choice='1']").text_content()
    press("[data-choice='1']")
    tab.get_by_text("Your choice").wait_for()
    assert tab.locator(".translation").text_content().split() == other.split()
    assert tab.locator("[data-word='0']").evaluate("element => element === document.activeElement")
    press("[data-explore]")
    frame = tab.frame_locator("iframe[title=Explorer]")
    frame.locator("html[data-ready]").wait_for(state="attached")
    assert frame.locator("#source").text_content() == source
    assert frame.locator("#translation").text_content().split() == other.split()
    assert tab.locator("img[src=x]").count() == 0


@pytest.mark.system
def test_pointing_at_a_word_marks_its_source_word(tab):
    word = tab.locator(".translation [data-link]").last
    word.hover()
    assert tab.locator(".source .linked").count() == 1
    assert tab.locator(".source .linked").get_attribute("data-link") == word.get_attribute("data-link")
    tab.get_by_role("heading").hover()
    assert tab.locator(".linked").count() == 0


@pytest.mark.system
def test_the_switch_translates_the_translation_back(tab):
    translations = [" ".join(text.split()) for text in tab.locator(".translation").all_text_contents()]
    tab.get_by_label("German to English").click()
    tab.locator(".source", has_text=translations[0]).wait_for()
    assert " ".join(tab.get_by_label("Text").first.input_value().split()) == " ".join(translations)
    tab.get_by_text(EXAMPLES[2], exact=True).click()
    tab.locator(f".sentence[data-source='{EXAMPLES[2]}']").wait_for()
    assert tab.get_by_label("English to German").is_checked()


@pytest.mark.system
def test_nothing_of_another_text_is_shown(tab, demo, monkeypatch):
    text, start = tab.get_by_label("Text").first, tab.get_by_role("button", name="Translate", exact=True)
    tab.locator("[data-explore]").first.click()
    tab.locator("iframe").wait_for()
    text.fill("The cat.")
    assert sources(tab) == []
    assert not tab.locator("iframe").is_visible()
    may_end, translate = threading.Event(), demo.Translator.translate

    def late(*arguments: Any) -> Any:
        may_end.wait(10)
        return translate(*arguments)

    monkeypatch.setattr(demo.Translator, "translate", late)
    start.click()
    text.fill("The dog.")
    may_end.set()
    tab.locator("[data-source='The cat.']").wait_for(state="attached")
    assert sources(tab) == []
    start.click()
    tab.locator("[data-source='The dog.']").wait_for()
    text.fill("<2xx> The dog.")
    start.click()
    tab.get_by_text("the text begins with <2xx>").wait_for()
    assert sources(tab) == []
    text.fill(" ")
    start.click()
    tab.get_by_text("The translation appears here.").wait_for()
    assert not tab.get_by_text("the text begins with <2xx>").is_visible()
