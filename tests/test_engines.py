"""Exports in place of the model, in translate.py: the same translations as by the engine alone."""

import copy
import json
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import BOX, REPOSITORY, call_recipe, save_model, write_lines
from models import distinct
from tokenizers import normalizers
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase, pipeline
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.utils.logging import warning_once

from vaswani_transformer import VaswaniTokenizer, VaswaniTranslationPipeline
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.ensemble import Ensemble
from vaswani_transformer.decoding.saved_model import SavedModel
from vaswani_transformer.engines import exported_model
from vaswani_transformer.model import pipeline_vaswani
from vaswani_transformer.model.parsing_vaswani import VaswaniParsingPipeline
from vaswani_transformer.model.pipeline_vaswani import register_task
from vaswani_transformer.registration import register


ctranslate2 = pytest.importorskip("ctranslate2")

from vaswani_transformer.engines import ctranslate2 as ctranslate2_engine  # noqa: E402
from vaswani_transformer.engines.ctranslate2 import CTranslate2Translator  # noqa: E402 - needs it


LINES = ["", *(english for english, _ in phrasebook("validation")[:7]), "  spaces around  ", "The end. The cat sleeps."]


@pytest.fixture(scope="module")
def saved(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and in `engine` its export."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)  # some models translate all lines alike
    model = distinct(len(tokenizer))
    model.generation_config.max_new_tokens_over_source = 5
    save_model(folder, model, tokenizer)
    ctranslate2_engine.export(model, tokenizer, folder / "engine")
    return folder


def test_shards_go_on_with_the_same_export_only(saved, tokenizer, tmp_path):
    write_lines(tmp_path / "input", LINES)
    ctranslate2_engine.export(AutoModelForSeq2SeqLM.from_pretrained(saved), tokenizer, tmp_path / "other", "int8")
    options = ("--model", saved, "--input", tmp_path / "input", "--output", tmp_path / "found")
    options += ("--split_sentences", "false", "--engine")
    call_recipe("translate.py", *options, saved / "engine", "--shard", "0/2")
    with pytest.raises(SystemExit, match=r"part of another translation, which differs in engine \(sha256"):
        call_recipe("translate.py", *options, tmp_path / "other", "--shard", "1/2")
    call_recipe("translate.py", *options, saved / "engine")
    alone = CTranslate2Translator(saved / "engine").hypotheses(tokenizer([line.strip() for line in LINES]).input_ids)
    texts = tokenizer.batch_decode(alone, skip_special_tokens=True)
    expected = [" ".join(text.splitlines()) if line else "" for line, text in zip(LINES, texts, strict=True)]
    assert (tmp_path / "found").read_text(encoding="utf-8").split("\n")[:-1] == expected
    assert len(set(expected)) >= len(expected) - 2


@pytest.mark.parametrize("engine", [".", "onnx:int8", "ctranslate2:foo"])
def test_a_name_that_is_no_engine_is_refused(engine, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("input").write_text("A line.\n", encoding="utf-8")
    with pytest.raises(
        SystemExit, match=f"engine: {engine} is not an exported model; choose ctranslate2, ctranslate2:int8, onnx"
    ):
        call_recipe("translate.py", "--model", saved, "--engine", engine, "--input", "input", "--output", "out")
    assert [path.name for path in tmp_path.iterdir()] == ["input"]


def test_a_source_longer_than_the_positions_is_cut_with_a_warning(saved, tokenizer, caplog):
    model = AutoModelForSeq2SeqLM.from_pretrained(saved)
    model.generation_config.update(max_new_tokens=3, max_new_tokens_over_source=None)
    engine = exported_model.ExportedModel(saved / "engine", model, tokenizer)
    ids = torch.randint(3, len(tokenizer), (2, 5000))
    ids[:, -1] = tokenizer.eos_token_id
    warning_once.cache_clear()
    engine.generate(ids[:, -9:], torch.ones(2, 9))
    assert not caplog.records
    assert engine.generate(ids, torch.ones_like(ids)).shape[0] == 2
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("a sentence has more tokens than the export takes, 4096; ")


def test_an_export_of_another_model_or_tokenizer_is_refused(saved, tokenizer):
    shouted = [sentence.upper() for pair in phrasebook("validation") for sentence in pair]
    other = VaswaniTokenizer.train(shouted, len(tokenizer), show_progress=False)
    model = AutoModelForSeq2SeqLM.from_pretrained(saved)

    def differs(tokenizer: VaswaniTokenizer = tokenizer) -> str:
        with pytest.raises(ValueError, match=r"^engine: .* was exported from another model") as refusal:
            exported_model.ExportedModel(saved / "engine", model, tokenizer)
        return re.findall(r"(\w+) \(\w+ then", str(refusal.value))

    exported_model.ExportedModel(saved / "engine", model, tokenizer)
    assert differs(other) == ["tokenizer"]
    model.generation_config.no_repeat_ngram_size = 2  # CTranslate2 would ignore it
    assert differs() == ["search"]
    model.generation_config.update(no_repeat_ngram_size=None, num_beams=2, length_penalty=0.1)  # it takes these
    exported_model.ExportedModel(saved / "engine", model, tokenizer)
    model.model.shared.weight.data[7, 0] += 1
    assert differs() == ["weights"]


@pytest.mark.parametrize(
    "options", [{}, {"num_return_sequences": 3}, {"num_beams": 1}, {"length_penalty": 0.0}, {"num_beams": 2}], ids=str
)
def test_sentences_of_many_lengths_have_the_translations_of_each_alone(options, saved, tokenizer):
    """Each has its own limit, of five tokens more than its source; this model often reaches it."""
    engine = CTranslate2Translator(saved / "engine")
    search = replace(engine.search, **options)
    sources = tokenizer([line for line in LINES if line]).input_ids
    assert len({len(source) for source in sources}) > 4
    expected = [engine.n_best([source], search)[0] for source in sources]
    assert engine.n_best(sources, search) == expected
    reached = [len(ranked[0]) == len(source) + 5 for ranked, source in zip(expected, sources, strict=True)]
    assert any(reached)
    assert {len(ranked) for ranked in expected} == {options.get("num_return_sequences", 1)}


def test_n_best_with_scores_are_in_the_order_of_the_scores(saved, monkeypatch):
    translator = pipeline("translation", model=str(saved), engine=str(saved / "engine"), split_sentences=False)
    engine = translator.engine.engine
    n_best = engine.n_best
    monkeypatch.setattr(engine, "n_best", lambda *arguments: [ranked[::-1] for ranked in n_best(*arguments)])
    translator.model.config.confidence_curve = [[-9.0, 10.0], [0.0, 90.0]]
    texts = [english for english, _ in phrasebook("validation")[:9]]
    for records in translator(texts, return_scores=True, num_return_sequences=4):
        scores = [record["score"] for record in records]
        assert scores == sorted(scores, reverse=True)
        assert [record["confidence"] is None for record in records] == [False, True, True, True]


def test_each_damaged_file_of_an_export_is_named(saved, tokenizer, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(saved)
    damaged = shutil.copytree(saved / "engine", tmp_path / "damaged")
    for path in sorted(damaged.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        message = "is not an exported model" if path.name == "manifest.json" else f"{path.name} has .*; export the"
        with pytest.raises(ValueError, match=f"^engine: .*damaged.* {message}"):
            exported_model.ExportedModel(damaged, model, tokenizer)
        path.write_bytes(content)


def test_a_model_with_adapters_is_not_exported_without_them(tokenizer, cache):
    class Adapted(torch.nn.Module):
        """As PEFT's models: another class around the model, with its configuration."""

        def __init__(self, model):
            super().__init__()
            self.base_model, self.config, self.device = model, model.config, model.device

    model = distinct(len(tokenizer))
    inside = distinct(len(tokenizer))
    inside.model.decoder.layers[0].feed_forward.fc1.lora = torch.nn.Linear(2, 2)
    for adapted in (Adapted(model), inside):
        with pytest.raises(ValueError, match="merge adapters first"):
            exported_model.ExportedModel("ctranslate2", adapted, tokenizer)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for exports."""
    monkeypatch.setattr(exported_model, "EXPORTS", tmp_path / "cache")
    return tmp_path / "cache"


def test_a_named_engine_is_exported_once_for_two_programs_and_anew_for_other_weights(tokenizer, cache, monkeypatch):
    model = distinct(len(tokenizer))
    exports, original = [], ctranslate2_engine.export

    def export(*args, **options):
        exports.append(options)
        time.sleep(0.2)
        return original(*args, **options)

    monkeypatch.setattr(ctranslate2_engine, "export", export)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: exported_model.exported("ctranslate2", model, tokenizer), range(2))
    assert first == second
    model.config.confidence_curve = [[-1.0, 30.0]]  # changes no translation
    assert exported_model.exported("ctranslate2", model, tokenizer) == first
    assert exported_model.exported("ctranslate2:int8", model, tokenizer) != first
    model.model.shared.weight.data[7, 0] += 1
    assert exported_model.exported("ctranslate2", model, tokenizer) != first
    assert exports == [{}, {"quantization": "int8"}, {}]


def test_scores_are_the_engines_too(saved, tokenizer, cache):
    """CTranslate2 returns log P / |Y|^alpha, by which it ranks."""
    model = AutoModelForSeq2SeqLM.from_pretrained(saved)
    translator = pipeline("translation", model=model, tokenizer=tokenizer, engine="ctranslate2", split_sentences=False)
    with pytest.raises(ValueError, match=r"^engine: is for the constructor only"):
        translator(LINES[1], engine="onnx")
    records = translator(LINES[1:4], num_return_sequences=3, num_beams=5, length_penalty=0.8, return_scores=True)
    (directory,) = (path for path in cache.iterdir() if path.is_dir())
    for ranked, line in zip(records, LINES[1:4], strict=True):
        source = tokenizer.tokenize(line, add_special_tokens=True)
        options = {"beam_size": 5, "num_hypotheses": 3, "length_penalty": 0.8, "max_decoding_length": len(source) + 5}
        options["min_decoding_length"] = 0
        (expected,) = ctranslate2.Translator(str(directory)).translate_batch([source], return_scores=True, **options)
        tokens = [tokenizer.convert_tokens_to_ids(each) for each in expected.hypotheses]
        assert [each["translation_text"] for each in ranked] == tokenizer.batch_decode(tokens, skip_special_tokens=True)
        scores = [each["log_probability"] / each["tokens"] ** 0.8 for each in ranked]
        assert scores == pytest.approx(expected.scores, rel=1e-3)
        assert len({each["translation_text"] for each in ranked}) > 1


def test_an_export_in_the_cache_is_made_anew_if_it_is_damaged_and_for_another_tokenizer(
    saved, tokenizer, cache, caplog, monkeypatch
):
    model = AutoModelForSeq2SeqLM.from_pretrained(saved)
    first = exported_model.exported("ctranslate2", model, tokenizer)
    (first / "model.bin").write_bytes(b"")
    caplog.clear()
    assert exported_model.exported("ctranslate2", model, tokenizer) == first
    assert [record.getMessage() for record in caplog.records] == [
        "engine: exporting the model to ctranslate2 again (model.bin has 0 bytes instead of "
        f"{(first / 'model.bin').stat().st_size}): {first}"
    ]
    (first / "manifest.json").write_text("{", encoding="utf-8")
    assert exported_model.exported("ctranslate2", model, tokenizer) == first
    lower = copy.deepcopy(tokenizer)
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()
    second = exported_model.exported("ctranslate2", model, lower)
    assert second != first
    monkeypatch.setattr(exported_model, "version", lambda name: "another")
    assert exported_model.exported("ctranslate2", model, tokenizer) not in (first, second)


def test_the_packages_pipeline_takes_the_place_of_a_models_own_code(monkeypatch):
    tasks = PIPELINE_REGISTRY.supported_tasks
    remote = type("Remote", (pipeline_vaswani.VaswaniTranslationPipeline,), {"__module__": "transformers_modules.x"})
    monkeypatch.setitem(tasks, "translation", {**tasks["translation"], "impl": remote})
    register()
    assert tasks["translation"]["impl"] is VaswaniTranslationPipeline
    monkeypatch.setitem(tasks, "translation", {**tasks["translation"], "impl": dict})  # of transformers itself
    register()
    assert tasks["translation"]["impl"] is dict
    parsing = type("Remote", (VaswaniParsingPipeline,), {"__module__": "transformers_modules.x"})
    monkeypatch.setitem(tasks, "constituency-parsing", {**tasks["constituency-parsing"], "impl": parsing})
    register_task("constituency-parsing", VaswaniParsingPipeline)
    assert tasks["constituency-parsing"]["impl"] is VaswaniParsingPipeline


def test_a_hub_pipeline_without_the_package_says_what_is_missing(saved, tokenizer):
    parts = {"model": AutoModelForSeq2SeqLM.from_pretrained(saved), "tokenizer": tokenizer}
    with pytest.raises(ImportError, match=r"^engine: needs the package vaswani_transformer; install and import it"):
        pipeline_vaswani.VaswaniTranslationPipeline(**parts, engine="ctranslate2")
    with pytest.raises(ImportError, match=r"^force_words: needs the package vaswani_transformer; install and import"):
        pipeline_vaswani.VaswaniTranslationPipeline(**parts)("A line.", force_words=["word"])


def test_an_engine_that_is_not_installed_is_named_with_its_extra(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "vaswani_transformer.engines.ctranslate2", None)
    with pytest.raises(ImportError, match=r"^engine: .*; run `pip install -e \"\.\[export\]\"`"):
        pipeline("translation", model=str(saved), engine=str(saved / "engine"))


def test_the_score_by_an_ensemble_is_what_its_search_ranks_by(saved, tokenizer):
    model, second = AutoModelForSeq2SeqLM.from_pretrained(saved), distinct(len(tokenizer)).eval()
    model.config.confidence_curve = [[-9.0, 10.0], [0.0, 90.0]]  # which was not measured for both together
    translator = pipeline("translation", model=model, tokenizer=tokenizer, custom_generate=Ensemble([second]))
    for line in LINES[1:4]:
        inputs = tokenizer(line, return_tensors="pt")
        options = {"num_return_sequences": 2, "return_dict_in_generate": True, "output_scores": True}
        expected = model.generate(**inputs, custom_generate=Ensemble([second]), **options).sequences_scores
        (records,) = translator([line], num_return_sequences=2, return_scores=True)
        assert [each["score"] for each in records] == pytest.approx(expected.tolist(), abs=1e-4)
        assert {each["confidence"] for each in records} == {None}


CHAPTER = (REPOSITORY / "vaswani_transformer" / "convert" / "README.md").read_text(encoding="utf-8")
WAYS = {
    "the model": (),
    "`--engine ctranslate2`": ("--engine", "ctranslate2"),
    "`--engine onnx`": ("--engine", "onnx"),
    "`--ensemble`": ("--ensemble", "{second}"),
}


def test_the_chapters_server_translates_without_the_package_as_translate_py(tmp_path, capsys):
    call_recipe("export.py", "--model", BOX, "--output", tmp_path / "engine")
    lines = ["<2de> The old man reads a book.", "<2en> Zoe\u0308 schläft \u2028 nicht.", "<2en> Ja!"]
    code = re.search(r"```python\n(import ctranslate2\n.*?)```", CHAPTER, re.S)[1]
    code = code.replace("runs/demo_ct2", str(tmp_path / "engine"))
    code = re.sub(r"sentences = .*", lambda _: f"sentences = {lines}", code)
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    write_lines(tmp_path / "input", lines)
    options = ("--engine", tmp_path / "engine", "--split_sentences", "false", "--output", tmp_path / "output")
    call_recipe("translate.py", "--model", BOX, "--input", tmp_path / "input", *options)
    assert printed == (tmp_path / "output").read_text(encoding="utf-8")
    assert "Mann" in printed


@pytest.mark.system
@pytest.mark.parametrize("way", WAYS)
def test_the_chapters_table_of_options_is_right(way, saved, tokenizer, cache, tmp_path, monkeypatch):
    if "onnx" in way:
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(shutil.copytree(saved, tmp_path / "model"))
    SavedModel("", ".", Path(), None, None).update_config(confidence_curve=[[-99.0, 10.0], [0.0, 90.0]])
    shutil.copytree(".", "runs/seed-2")
    write_lines(Path("input"), LINES)
    table = CHAPTER[CHAPTER.index("| option of `translate.py`") :].split("\n\n")[0]
    header, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    column = header[1:].index(way)
    given = ("--model", ".", "--input", "input", "--output", "out.jsonl", "--overwrite")
    given += tuple(word.format(second="runs/seed-2") for word in WAYS[way])
    for option, *cells in rows:
        cell, options = cells[column], option.split("`")[1].split()
        if cell == "no":
            with pytest.raises(SystemExit, match=f"{options[0][2:]}|engine: has no effect here; "):
                call_recipe("translate.py", *given, *options)
            continue
        call_recipe("translate.py", *given, *options)
        records = [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
        assert len(records) == len(LINES) * (2 if "--num_return_sequences" in options else 1)
        if option.endswith("confidence"):
            assert all((record["confidence"] is None) == (cell == "null") for record in records if record["source"])
    assert len(rows) > 8
