"""The page to try a model on: what it translates and refuses, its server, how it behaves in Chromium, its Space."""

import ast
import importlib.util
import re
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers import REPOSITORY, call_recipe, free_port, recipe_module, run_python, watched_tab
from transformers import AutoModelForSeq2SeqLM

from vaswani_transformer.model.scores_vaswani import TranslationScore
from vaswani_transformer.runs.records import RunRecord
from vaswani_transformer.visualization.demo.space import GRADIO, write_space
from vaswani_transformer.visualization.demo.translator import (
    DemoTranslator,
    Limits,
    RefusedError,
    TranslatedSentence,
)
from vaswani_transformer.visualization.search_trace import TracedHypothesis


EXAMPLE = "A <b>."
HOSTILE = "<img src=x onerror=alert(1)>"
SEARCH = {"num_beams": 3, "max_new_tokens": 8}
NEEDS_GRADIO = pytest.mark.skipif(importlib.util.find_spec("gradio") is None, reason="gradio is not installed")


@pytest.fixture(scope="module")
def model(lively_model) -> Any:
    return AutoModelForSeq2SeqLM.from_pretrained(lively_model).eval()


@pytest.fixture(scope="module")
def translator(model, tokenizer) -> DemoTranslator:
    limits = Limits(
        max_characters=200, max_sentences=4, max_tokens=40, max_explored_tokens=10, max_file_kilobytes=50, max_queue=5
    )
    return DemoTranslator(model, tokenizer, limits, **SEARCH)


def generated(model, tokenizer, text: str) -> str:
    output = model.generate(**tokenizer(text, return_tensors="pt"), **SEARCH)
    return tokenizer.decode(output[0], skip_special_tokens=True)


def translated(translator: DemoTranslator, path: Path) -> str:
    *_, end = translator.translate_file(path)
    return end.text


def test_a_sentence_ends_with_what_generate_returns(model, tokenizer, translator):
    *steps, end = translator.translate("  The old man reads a book. ")
    assert len(steps) > 1
    assert end.text == generated(model, tokenizer, "The old man reads a book.")
    (sentence,) = end.sentences
    assert sentence.source == "The old man reads a book."
    assert len(sentence.hypotheses) == SEARCH["num_beams"]
    scores = [found.score for found in sentence.hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert [each.score for each in sentence.scores] == pytest.approx(scores, abs=1e-4)
    for found, each in zip(sentence.hypotheses, sentence.scores, strict=True):
        assert len(found.text.split()) == len(each.word_log_probabilities)
    assert "<svg" in translator.align(sentence.source, sentence.hypotheses[0].tokens)._repr_svg_()


def test_each_sentence_of_a_text_is_translated(model, tokenizer, translator, tmp_path):
    sentences = ["The old man reads a book.", "Today the children do not sleep.", "Who sleeps?"]
    text, own = "  ".join(sentences), [generated(model, tokenizer, sentence) for sentence in sentences]
    assert len(set(own)) == 3
    *steps, end = translator.translate(text)
    assert end.text == "  ".join(own)
    assert [each.source for each in end.sentences] == sentences
    assert [each.hypotheses[0].text for each in end.sentences] == own
    begun = [step for step in steps if len(step.sentences) == 1]
    assert all(step.text.startswith(own[0]) for step in begun)
    assert begun
    (tmp_path / "text.txt").write_text(f"{sentences[2]}\n{text}\n", encoding="utf-8")
    lines = [" ".join(line.splitlines()) for line in (own[2], "  ".join(own))]
    assert translated(translator, tmp_path / "text.txt").split("\n") == [*lines, ""]
    with pytest.raises(RefusedError, match="has 2 sentences, and the explorer shows one"):
        translator.explore("The cat. A dog.")


def test_a_sentence_longer_than_any_trained_on_gets_a_warning(model, tokenizer, translator, tmp_path, monkeypatch):
    long = "The old man reads a book and sleeps"
    text, count = f"Who sleeps? {long}.", len(tokenizer(f"{long}.").input_ids)
    (tmp_path / "text.txt").write_text(f"Who sleeps?\n{text}\n", encoding="utf-8")
    for longest, is_long in ((None, False), (count, False), (count - 1, True)):
        monkeypatch.setattr(model.config, "longest_source", longest)
        *_, end = translator.translate(text)
        *_, of_file = translator.translate_file(tmp_path / "text.txt")
        expected = f"has {count} tokens, and the longest sentence trained on {longest}; parts of it may stay"
        assert (expected in (end.warning or "")) == (end.warning is not None) == is_long
        assert (
            (f"A sentence of line 2 {expected}" in (of_file.warning or "")) == (of_file.warning is not None) == is_long
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "The text: is empty"),
        ("\ud800", "The text: .* give valid Unicode"),
        ("No! " * 5, "has 5 sentences, and the limit is 4"),
        ("a" * 201, "has 201 characters, and the limit is 200"),
        ("a b c " * 30, r"has a sentence of \d+ tokens, and the limit is 40"),
    ],
)
def test_sentences_over_a_limit_are_refused(translator, text, message):
    with pytest.raises(RefusedError, match=message):
        next(translator.translate(text))
    with pytest.raises(RefusedError):
        translator.explore(text)


def test_the_explorer_has_a_limit_of_its_own(translator):
    assert "The cat" in translator.explore("The cat")
    with pytest.raises(RefusedError, match="the limit is 10"):
        translator.explore("The old man reads a book in the garden.")


def test_a_file_keeps_its_order_and_its_blank_lines(model, tokenizer, translator, tmp_path):
    sentences = [f"The {word} man {'reads ' * times}." for word in ("old", "young", "red") for times in range(4)]
    lines = ["" if number % 7 == 3 else sentences[number % 12] for number in range(1000)]
    file = tmp_path / "text.txt"
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    progress = list(translator.translate_file(file))
    assert [state.done for state in progress] == sorted(state.done for state in progress)
    assert len(progress) > 3
    assert (progress[-1].done, progress[-1].total) == (1000, 1000)
    found = progress[-1].text.split("\n")
    assert found.pop() == ""
    assert len(found) == 1000
    expected = {line: " ".join(generated(model, tokenizer, line).splitlines()) if line else "" for line in set(lines)}
    assert found == [expected[line] for line in lines]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no text"),
        (b"The man\n\xff\n", r"The file, line 2: not UTF-8 .*"),
        (b"a\n" * 1001, "more than 1,000 lines"),
        (b"a" * 50_001, "more than 50 kB"),
        (b"a\n" + b"b" * 300, "Line 2 has 300 characters"),
    ],
)
def test_files_over_a_limit_are_refused(translator, tmp_path, content, message):
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(RefusedError, match=message):
        translated(translator, tmp_path / "text.txt")


def test_a_refusal_or_an_abandoned_sentence_blocks_no_other_request(translator, tmp_path):
    for _ in range(3):
        next(translator.translate("The old man reads a book."))
    with pytest.raises(RefusedError):
        next(translator.translate(""))
    (tmp_path / "text.txt").write_text("The man.\n", encoding="utf-8")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: translated(translator, tmp_path / "text.txt"), range(8)))
    assert len(set(found)) == 1


@pytest.mark.parametrize("is_directory", [True, False])
def test_the_folder_of_a_space_is_complete(lively_model, tmp_path, is_directory):
    name = str(lively_model) if is_directory else "user/en-de"
    recipe = REPOSITORY / "recipes" / "demo_app.py"
    write_space(tmp_path / "space", recipe, name, ["--examples", "Hello 😀 world.", "a 'b'"])
    folder = tmp_path / "space"
    app = (folder / "app.py").read_text(encoding="utf-8")
    compile(app, "app.py", "exec")
    given = ast.literal_eval(re.search(r"sys\.argv\[1:\] = (\[.*\])", app)[1])
    assert given[:4] == ["--model", f"models/{lively_model.name}" if is_directory else name, "--host", "0.0.0.0"]
    assert given[-3:] == ["--examples", "Hello 😀 world.", "a 'b'"]
    assert (folder / given[1] / "model.safetensors").is_file() == is_directory
    assert (folder / "demo_app.py").read_bytes() == recipe.read_bytes()
    assert (folder / "vaswani_transformer" / "visualization" / "explorer.js").is_file()
    assert not list(folder.rglob("__pycache__"))
    metadata = (folder / "README.md").read_text(encoding="utf-8").split("---\n")[1]
    assert "sdk: gradio\n" in metadata
    assert f"sdk_version: {GRADIO}\n" in metadata
    assert ("user/en-de" in metadata) != is_directory
    requirements = (folder / "requirements.txt").read_text(encoding="utf-8")
    assert re.search(r"^torch>=", requirements, re.M)
    assert "pytest" not in requirements
    assert re.search(r"^sentencex[<>=.,0-9]+$", requirements, re.M)
    assert f"gradio=={GRADIO}\n" in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")


def test_a_space_has_only_what_the_model_needs(lively_model, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(lively_model, model)
    for name in ("hub_token.json", "tokens.json", "vocab_secret", "all_results.json", "training_args.bin"):
        (model / name).write_text("secret", encoding="utf-8")
    for name in ("vocab.json", "linked.model"):
        (model / name).symlink_to(model / "hub_token.json")
    recipe = REPOSITORY / "recipes" / "demo_app.py"
    write_space(tmp_path / "space", recipe, str(model))
    copied = {path.name for path in (tmp_path / "space" / "models" / "model").iterdir()}
    assert copied == {path.name for path in lively_model.iterdir() if not path.name.endswith("_vaswani.py")}
    weights = model / "model.safetensors"
    weights.rename(tmp_path / weights.name)
    weights.symlink_to(tmp_path / weights.name)
    with pytest.raises(ValueError, match=r"^push_to_space: .*model has no weights that are files, not links"):
        write_space(tmp_path / "another", recipe, str(model))
    assert not (tmp_path / "another").exists()


@pytest.mark.system
def test_a_space_runs_without_the_repository(lively_model, tmp_path):
    given = ["--max_lines", 7, "--examples", "A cat.", "Dogs!"]
    call_recipe("demo_app.py", "--model", lively_model, "--push_to_space", tmp_path / "space", *given)
    program = (
        "import demo_app, vaswani_transformer as v, sys; print(v.__file__, demo_app.Limits(max_lines=7).max_lines)"
    )
    result = run_python(["-c", program], folder=tmp_path / "space")
    assert result.stdout.startswith(str(tmp_path / "space")), result.stderr
    assert "'--max_lines', '7', '--examples', 'A cat.', 'Dogs!'" in (tmp_path / "space" / "app.py").read_text(
        encoding="utf-8"
    )


@NEEDS_GRADIO
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "no host"}, "host, port: cannot listen on port 7860 of no host: "),
        ({"push_to_space": "there"}, "push_to_space: there exists already"),
    ],
)
def test_bad_options_get_one_line(lively_model, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    given = {"model": lively_model, **options}
    arguments = [text for name, value in given.items() if value is not None for text in (f"--{name}", value)]
    with pytest.raises(SystemExit) as stopped:
        call_recipe("demo_app.py", *arguments)
    assert message in str(stopped.value)
    assert "\n" not in str(stopped.value)


@NEEDS_GRADIO
def test_a_port_in_use_is_refused_before_the_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(SystemExit) as stopped:
        call_recipe("demo_app.py", "--model", "missing", "--port", server.getsockname()[1])
    assert str(stopped.value).startswith("demo_app.py: host, port: cannot listen on port")


@pytest.fixture(scope="module")
def address(translator) -> Iterator[str]:
    """Address of a page that is served; tests that ask for it skip without gradio."""
    pytest.importorskip("gradio", reason="gradio is not installed")
    from vaswani_transformer.visualization.demo.page import build_page, serve

    page = build_page(translator, "a <b>model</b>", [EXAMPLE])
    yield serve(page, translator, "127.0.0.1", free_port(), is_blocking=False)
    page.close()


@pytest.mark.system
def test_fifty_requests_at_once_are_answered_or_refused(address, translator):
    from gradio_client import Client

    clients = [Client(address, verbose=False) for _ in range(5)]

    def ask(number: int) -> str:
        try:
            return clients[number % 5].predict("The old man reads a book.", api_name="/translate")[0]
        except Exception as error:  # gradio_client has several types
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(50)))
    *_, end = translator.translate("The old man reads a book.")
    refused = [answer for answer in answers if answer != end.text]
    assert 1 <= len(refused) < 50
    assert all("Queue is full" in answer for answer in refused), set(refused)
    assert ask(0) == end.text


@pytest.mark.system
def test_steps_and_refusals_over_http(address, translator):
    from gradio_client import Client

    client = Client(address, verbose=False)
    job = client.submit("The old man reads a book.", api_name="/translate")
    job.result()
    steps = list(translator.translate("The old man reads a book."))
    assert [shown[0] for shown in job.outputs()] == [step.text for step in [*steps, steps[-1]]]
    with pytest.raises(Exception, match="has 201 characters"):
        client.predict("a" * 201, api_name="/translate")
    text, hypotheses, alignments = client.predict("Who sleeps? The <cat>.", api_name="/translate")
    *_, end = translator.translate("Who sleeps? The <cat>.")
    assert text == end.text
    headings = ["<h3>Who sleeps?</h3>", "<h3>The &lt;cat&gt;.</h3>"]
    assert re.findall("<h3>.*?</h3>", hypotheses) == re.findall("<h3>.*?</h3>", alignments) == headings
    assert (hypotheses.count("<table"), alignments.count("<img")) == (2, 2)


@pytest.fixture(params=[1280, 390])
def tab(request, browser, address) -> Iterator[Any]:
    """The page, on a screen and on a phone; no test may make it wider than that."""
    own = (address, address.replace("http", "ws"), "data:", "blob:", "about:")
    with watched_tab(browser, request.param, 900, own) as tab:
        tab.goto(address)
        tab.get_by_label("Text").first.wait_for()
        yield tab
        assert tab.evaluate("document.documentElement.scrollWidth") == request.param


@pytest.mark.system
def test_a_sentence_is_translated_and_explored_by_keyboard(tab, translator):
    source = "The cat."
    *_, end = translator.translate(source)
    tab.get_by_label("Text").first.focus()
    tab.keyboard.type(source)
    for name in ("Translate", "Explore this sentence"):
        while tab.evaluate("document.activeElement.textContent.trim()") != name:
            tab.keyboard.press("Tab")
        tab.keyboard.press("Enter")
    tab.locator(".alignment img").wait_for()
    assert tab.get_by_label("Translation").first.input_value() == end.text
    assert tab.locator(".found td").nth(1).text_content() == end.text
    frame = tab.frame_locator(".explorer iframe")
    frame.locator("html[data-ready]").wait_for(state="attached")
    assert frame.locator("#source").text_content() == source


@pytest.mark.system
def test_hostile_text_is_shown_as_text(tab, translator, monkeypatch):
    kind = type(translator.tokenizer)
    decode = kind.decode

    def hostile(*given: Any, **options: Any) -> str | list[str]:
        found = decode(*given, **options)
        return HOSTILE + found if isinstance(found, str) else [HOSTILE + each for each in found]

    monkeypatch.setattr(kind, "decode", hostile)
    tab.get_by_label("Text").first.fill(HOSTILE)
    tab.get_by_role("button", name="Translate", exact=True).click()
    tab.locator(".alignment img").wait_for()
    assert tab.get_by_label("Text").first.input_value() == HOSTILE
    assert tab.get_by_label("Translation").first.input_value().startswith(HOSTILE)
    assert tab.locator(".found td").nth(1).text_content().startswith(HOSTILE)
    assert tab.locator("img[src=x]").count() == 0
    assert "<b>model</b>" in tab.locator("h1").text_content()


@NEEDS_GRADIO
def test_each_word_of_a_hypothesis_shows_its_probability_and_is_escaped():
    page = importlib.import_module("vaswani_transformer.visualization.demo.page")
    hypothesis = TracedHypothesis(place=(1, 0), score=-0.5, tokens=(3, 4, 1), text="<b> cat")
    for confidence, cell in ((None, ""), (61.7, "<td>62</td>")):
        scores = [TranslationScore(-1.5, -0.5, 3, [-0.1, -1.4], each) for each in (confidence, None)]
        found = page._table(TranslatedSentence("a", (hypothesis, hypothesis), tuple(scores)))
        assert found.count("<td></td>") == (confidence is not None)  # only the first was measured
        assert ("<th>Confidence</th>" in found) == (confidence is not None)
        words = (
            '<span title="-0.10" style="opacity: 0.94">&lt;b&gt;</span> <span title="-1.40" style="opacity: 0.55">cat'
        )
        assert f"<td>-0.5000</td>{cell}<td>{words}</span></td>" in found


@pytest.mark.system
def test_a_refusal_is_shown_in_the_page_instead_of_old_results(tab):
    results = (".found", ".alignment img", ".explorer iframe")
    tab.get_by_text(EXAMPLE).first.click()
    tab.wait_for_function("text => document.querySelector('textarea').value === text", arg=EXAMPLE)
    for name, result in (("Translate", results[1]), ("Explore this sentence", results[2])):
        tab.get_by_role("button", name=name, exact=True).click()
        tab.locator(result).wait_for()
    assert [tab.locator(result).count() for result in results] == [1, 1, 1]
    tab.get_by_label("Text").first.fill("a" * 201)
    tab.get_by_role("button", name="Translate", exact=True).click()
    message = tab.get_by_text("The text has 201 characters, and the limit is 200; shorten it.").first
    message.wait_for()
    for result in results:
        tab.locator(result).wait_for(state="detached")
    assert tab.get_by_label("Translation").first.input_value() == ""
    message.wait_for(state="detached")


@NEEDS_GRADIO
@pytest.mark.parametrize(
    ("languages", "target", "title"),
    [
        ({"source_language": "en", "target_language": "de_AT"}, None, "English to German with x"),
        ({"language_tags": {"en": 8, "fr": 9}}, "fr", "English to French with x"),
        ({"source_language": "en"}, None, "Translate with x"),
    ],
)
def test_the_title_names_the_languages(model, tokenizer, monkeypatch, languages, target, title):
    from vaswani_transformer.visualization.demo.page import build_page

    for name, value in languages.items():
        monkeypatch.setattr(model.config, name, value, raising=False)
    page = build_page(DemoTranslator(model, tokenizer, target_language=target, **SEARCH), "x")
    assert page.title == title


def test_examples_are_those_of_the_training(tmp_path):
    examples = recipe_module("demo_app.py").recorded_examples
    record = RunRecord.load(REPOSITORY / "model_cards" / "tatoeba-de-en.json")
    assert examples(tmp_path, "de") == []
    record.save(tmp_path / "all_results.json")
    assert examples(tmp_path, "de") == examples(tmp_path, None) == [each.source for each in record.examples]
    assert examples(tmp_path, "en") == [each.reference for each in record.examples]
    (tmp_path / "all_results.json").write_text('{"eval_loss": 1.5}', encoding="utf-8")  # as the Trainer writes it
    assert examples(tmp_path, "de") == []


@pytest.mark.system
def test_a_file_is_translated_in_the_page(tab, tmp_path):
    (tmp_path / "text.txt").write_text("The man.\n\nThe cat.\n", encoding="utf-8")
    tab.get_by_role("tab", name="File").click()
    tab.set_input_files("input[type=file]", str(tmp_path / "text.txt"))
    tab.locator("a[href*='text.txt']").wait_for()
    tab.get_by_role("button", name="Translate the file").click()
    tab.locator("a[href*='translations.txt']").wait_for()
    assert tab.get_by_label("Progress").input_value() == "3 of 3 lines translated"
