"""Our models as ONNX graphs: logits with and without a cache, hypotheses, files; refusals; transformers.js."""

import copy
import json
import os
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import torch
from helpers import REPOSITORY, call_recipe, save_model, write_lines, write_pairs
from models import with_own_softmax
from transformers import AutoTokenizer

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.engines import parity
from vaswani_transformer.engines.transformers_engine import TransformersTranslator


for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

from vaswani_transformer.engines import onnx as engine  # noqa: E402 - needs ONNX


pytestmark = pytest.mark.system
PAIRS = phrasebook("validation")[:16]
SOURCES = [english for english, _ in PAIRS]
PAD = 0
# What differs from the paper, and from the model of `exported`.
ALL_ELSE = {
    "attention_bias": False,
    "attention_neighborhood": 4,
    "decoder_layers": 2,
    "layer_norm_eps": 0.3,
    "logits_bias": True,
    "position_encoding": "learned",
    "max_position_embeddings": 17,
    "target_vocab_size": 43,
    "zero_padding_embedding": False,
}


@pytest.fixture(scope="module")
def exported(trained, tokenizer, tmp_path_factory) -> Path:
    """By the command of the chapter, which test_readme.py leaves to this file, but with references, two beams
    and a length limit, because the model was not trained to end other sentences."""
    folder = tmp_path_factory.mktemp("export")
    model = copy.deepcopy(trained)
    model.generation_config.max_length = 90
    save_model(folder / "runs" / "demo", model, tokenizer)
    write_pairs(PAIRS, folder / "news.en", folder / "references")
    chapter = (REPOSITORY / "vaswani_transformer" / "convert" / "README.md").read_text(encoding="utf-8")
    begin = "python recipes/export.py --model runs/demo --to onnx "
    (command,) = (line for line in chapter.splitlines() if line.startswith(begin))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        call_recipe("export.py", *shlex.split(command)[2:], "--references", "references", "--num_beams", 2)
    return folder / "runs" / "demo_onnx"


def require_the_logits_of(model: VaswaniForConditionalGeneration, exported: engine.OnnxModel) -> None:
    """For batches and lengths, with padding, at once and with a cache step by step."""
    for batch, source, target in ((1, 1, 1), (1, 9, 7), (2, 4, 2), (5, 12, 17)):
        ids, targets = torch.randint(3, 40, (batch, source)), torch.randint(3, 40, (batch, target))
        targets[:, 0] = PAD
        for row in range(1, batch):
            ids[row, source - row :] = PAD
        mask = ids.ne(PAD).long()
        with torch.no_grad():
            expected = model(ids, attention_mask=mask, decoder_input_ids=targets).logits
        torch.testing.assert_close(exported(ids, mask, targets).logits, expected, atol=1e-5, rtol=1e-5)
        cache = None
        for position in range(target):
            step = exported(ids, mask, targets[:, position : position + 1], past_key_values=cache)
            cache = step.past_key_values
            torch.testing.assert_close(step.logits[:, 0], expected[:, position], atol=1e-5, rtol=1e-5)


def test_logits_are_the_models_with_and_without_a_cache(exported, trained):
    require_the_logits_of(trained, engine.OnnxModel(exported))


def test_logits_are_the_models_for_every_option_of_the_configuration_and_the_model_is_unchanged(tokenizer, tmp_path):
    model = with_own_softmax(400, **{"encoder_layers": 1, **ALL_ELSE})
    before = copy.deepcopy(model.state_dict())
    require_the_logits_of(model, engine.OnnxModel(engine.export(model, tokenizer, tmp_path / "out")))
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert model.config._attn_implementation != "eager"


def test_the_recipe_reports_that_translations_are_the_same(exported):
    report = parity.ParityReport.load(exported / "parity.json")
    assert (report.lines, report.identical, report.same_tokens) == (16, 16, 16)
    assert report.bleu["exported"].score == pytest.approx(100.0)  # it has learned them by heart


def test_translate_takes_it_in_place_of_the_model(exported, tmp_path):
    write_lines(tmp_path / "input", ["", *SOURCES])
    files = ("--input", tmp_path / "input", "--output", tmp_path / "output")
    call_recipe("translate.py", "--model", exported.parent / "demo", "--engine", exported, *files)
    assert (tmp_path / "output").read_text(encoding="utf-8").splitlines() == ["", *(german for _, german in PAIRS)]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_hypotheses_are_the_same_also_of_unknown_sentences(exported, trained, tokenizer, num_beams):
    sources = tokenizer([english for english, _ in phrasebook("test")[:16]])["input_ids"]
    translator = TransformersTranslator(engine.OnnxModel(exported), "onnxruntime")
    translator.model.generation_config.num_beams = num_beams
    hypotheses = translator.hypotheses(sources)
    rule = {**translator.rule, "num_beams": num_beams}
    assert hypotheses == TransformersTranslator(trained, "ours").hypotheses(sources, **rule)
    assert len({len(hypothesis) for hypothesis in hypotheses}) > 3  # they end, at different places


def test_the_directory_has_the_names_of_optimum_and_the_tokenizer_of_the_model(exported, tokenizer):
    model = engine.OnnxModel(exported)
    cache = [f"0.{stack}.{kind}" for stack in ("decoder", "encoder") for kind in ("key", "value")]
    inputs = {each.name: each.shape for each in model.session.get_inputs()}
    assert list(inputs)[3:] == [f"past_key_values.{name}" for name in cache]
    # transformers.js makes the first, empty cache from these shapes; it knows the name of the batch alone.
    assert inputs["past_key_values.0.encoder.key"] == ["batch_size", 2, "past_encoder_sequence_length", 16]
    assert [each.name for each in model.session.get_outputs()] == ["logits", *(f"present.{name}" for name in cache)]
    assert sorted(path.name for path in exported.rglob("*.onnx")) == ["decoder_model_merged.onnx", "encoder_model.onnx"]
    config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["max_position_embeddings"]) == ("marian", 1024)
    search = json.loads((exported / "generation_config.json").read_text(encoding="utf-8"))
    assert (search["num_beams"], search["max_length"], search["decoder_start_token_id"]) == (2, 90, 0)
    assert AutoTokenizer.from_pretrained(exported)(SOURCES)["input_ids"] == tokenizer(SOURCES)["input_ids"]


PAGE = """<!doctype html><script type="module">
import { pipeline, env } from "/js/@huggingface/transformers/dist/transformers.min.js";
Object.assign(env, { allowRemoteModels: false, allowLocalModels: true });
Object.assign(env, { localModelPath: "/models/", useBrowserCache: false });
Object.assign(env.backends.onnx.wasm, { wasmPaths: "/js/onnxruntime-web/dist/", numThreads: 1 });
const translator = await pipeline("translation", "exported", { dtype: "fp32", device: "wasm" });
window.translate = async (text) => (await translator(text))[0].translation_text;
</script>"""
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm"}


def test_transformers_js_translates_in_a_browser_without_network(browser, exported):
    """One sentence a call, because in a batch transformers.js goes on after the end of the shorter ones."""
    if "TRANSFORMERS_JS" not in os.environ:
        pytest.skip("TRANSFORMERS_JS does not name a folder node_modules; run: make test-browser")
    folders = {"/js/": Path(os.environ["TRANSFORMERS_JS"]), "/models/exported/": exported}

    def serve(route: Any) -> None:
        """Answer from files alone."""
        path = urlparse(route.request.url).path
        if path == "/":
            return route.fulfill(body=PAGE, content_type="text/html")
        for prefix, folder in folders.items():
            file = folder / path.removeprefix(prefix)
            if path.startswith(prefix) and file.is_file():
                return route.fulfill(body=file.read_bytes(), content_type=TYPES.get(file.suffix, "text/plain"))
        return route.fulfill(status=404)

    context = browser.new_context()
    context.route("**/*", serve)
    tab = context.new_page()
    tab.goto("http://localhost/")
    # A name alone would be called, since it is a function.
    tab.wait_for_function("() => window.translate !== undefined", timeout=120_000)
    for english, german in PAIRS[:3]:
        assert tab.evaluate("text => window.translate(text)", english) == german
    context.close()
