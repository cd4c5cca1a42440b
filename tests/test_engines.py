"""Exports in place of the model, in translate.py: the same translations as by the engine alone."""

import copy
import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers import REPOSITORY, call_recipe, recipe_module, run_python, run_recipe
from models import distinct
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase, pipeline
from transformers.utils.logging import warning_once

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.convert import engines, known_engines
from vaswani_transformer.convert.known_engines import remember_export, remembered_export
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.engine_translation import open_remembered_engine
from vaswani_transformer.model.ensemble import Ensemble
from vaswani_transformer.model.saved_model import SavedModel


ctranslate2 = pytest.importorskip("ctranslate2")

from vaswani_transformer.convert.ctranslate2 import export_ctranslate2  # noqa: E402 - needs it
from vaswani_transformer.convert.ctranslate2_search import CTranslate2Translator  # noqa: E402


LINES = ["", *(english for english, _ in phrasebook("validation")[:7]), "  spaces around  ", "The end. The cat sleeps."]


@pytest.fixture(scope="module")
def saved(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and in `engine` its export."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)  # some models translate all lines alike
    model = distinct(len(tokenizer))
    model.generation_config.max_new_tokens_over_source = 5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    export_ctranslate2(model, tokenizer, folder / "engine")
    return folder


def by_engine_alone(directory: Path, lines: list[str]) -> list[str]:
    tokenizer = VaswaniTokenizer.from_pretrained(directory)
    found = CTranslate2Translator(directory).hypotheses(tokenizer([line.strip() for line in lines]).input_ids)
    texts = tokenizer.batch_decode(found, skip_special_tokens=True)
    return [" ".join(text.splitlines()) if line.strip() else "" for line, text in zip(lines, texts, strict=True)]


def test_a_file_is_translated_as_by_the_engine_alone(saved, tmp_path):
    (tmp_path / "input").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    arguments = ("--model", saved, "--input", tmp_path / "input", "--lines_per_shard", 4, "--split_sentences", "false")
    call_recipe("translate.py", *arguments, "--engine", saved / "engine", "--output", tmp_path / "found")
    expected = by_engine_alone(saved / "engine", LINES)
    assert (tmp_path / "found").read_text(encoding="utf-8").split("\n") == [*expected, ""]
    assert len(set(expected)) >= len(expected) - 2


def test_shards_go_on_with_the_same_export_only(saved, tokenizer, tmp_path):
    (tmp_path / "input").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    export_ctranslate2(distinct(len(tokenizer)), tokenizer, tmp_path / "other")
    options = ("--model", saved, "--input", tmp_path / "input", "--output", tmp_path / "found.jsonl")
    options += ("--split_sentences", "false", "--engine")
    call_recipe("translate.py", *options, saved / "engine", "--shard", "0/2")
    with pytest.raises(SystemExit, match=r"part of another translation, which differs in engine \(sha256"):
        call_recipe("translate.py", *options, tmp_path / "other", "--shard", "1/2")
    call_recipe("translate.py", *options, saved / "engine", "--shard", "1/2")
    shards = sorted((tmp_path / "found.jsonl.shards").glob("*-of-*"))
    rows = [json.loads(line) for shard in shards for line in shard.read_text(encoding="utf-8").splitlines()]
    assert [row["target"] for row in rows] == by_engine_alone(saved / "engine", LINES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine", "{tmp}"), "engine: .* is no export; name ctranslate2, ctranslate2:int8, onnx, or a directory"),
        (("--engine", "onnx:int8"), "engine: onnx:int8 is no export"),
        (("--engine", "ctranslate2:foo"), "engine: ctranslate2:foo is no export"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(options, message, saved, tmp_path):
    (tmp_path / "input").write_text("A line.\n", encoding="utf-8")
    files = ("--input", tmp_path / "input", "--output", tmp_path / "out")
    given = ("--model", saved, "--engine", saved / "engine", *files)
    with pytest.raises(SystemExit, match=message):
        call_recipe("translate.py", *given, *(str(word).format(tmp=tmp_path) for word in options))
    assert [path.name for path in tmp_path.iterdir()] == ["input"]


def test_a_source_longer_than_the_positions_is_cut_with_a_warning(saved, tokenizer, caplog):
    model = distinct(len(tokenizer))
    model.generation_config.update(max_new_tokens=3)
    engine = engines.ExportedModel(saved / "engine", model, tokenizer)
    ids = torch.randint(3, len(tokenizer), (2, 5000))
    ids[:, -1] = tokenizer.eos_token_id
    warning_once.cache_clear()
    engine.generate(ids[:, -9:], torch.ones(2, 9))
    assert not caplog.records
    found = engine.generate(ids, torch.ones_like(ids))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("a sentence has more tokens than the export takes, 4096; ")
    assert found.shape[0] == 2
    assert found.shape[1] <= 4
    assert found[:, 0].eq(0).all()


def test_an_export_of_another_vocabulary_is_refused(saved, tokenizer):
    shouted = [sentence.upper() for pair in phrasebook("validation") for sentence in pair]
    other = VaswaniTokenizer.train(shouted, len(tokenizer), show_progress=False)
    assert len(other) == len(tokenizer)
    with pytest.raises(ValueError, match=r"engine: .* was not made of this model, which has another vocabulary"):
        engines.ExportedModel(saved / "engine", distinct(50), other)


def test_n_best_with_scores_are_in_the_order_of_the_scores(saved, monkeypatch):
    translator = pipeline("translation", model=str(saved), engine=str(saved / "engine"), split_sentences=False)
    engine = translator.engine.__self__.engine
    n_best = engine.n_best
    monkeypatch.setattr(engine, "n_best", lambda *arguments: [ranked[::-1] for ranked in n_best(*arguments)])
    translator.model.config.confidence_curve = [[-9.0, 10.0], [0.0, 90.0]]
    texts = [english for english, _ in phrasebook("validation")[:9]]
    for records in translator(texts, return_scores=True, num_return_sequences=4):
        scores = [record["score"] for record in records]
        assert scores == sorted(scores, reverse=True)
        assert [record["confidence"] is None for record in records] == [False, True, True, True]


def test_a_damaged_export_is_named(saved, tokenizer, tmp_path):
    damaged = shutil.copytree(saved / "engine", tmp_path / "damaged")
    (damaged / "model.bin").write_bytes((damaged / "model.bin").read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"^engine: .*; remove .*damaged if it is damaged"):
        engines.ExportedModel(damaged, distinct(len(tokenizer)), tokenizer)


def test_a_model_with_adapters_is_not_exported_without_them(tokenizer, cache):
    model = distinct(len(tokenizer))
    model.model.decoder.layers[0].feed_forward.fc1.lora = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="merge adapters first"):
        engines.ExportedModel("ctranslate2", model, tokenizer)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for exports."""
    monkeypatch.setattr(known_engines, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_a_named_engine_is_exported_once_for_two_programs_and_anew_for_other_weights(tokenizer, cache, monkeypatch):
    model = distinct(len(tokenizer))
    exports = []

    def export(*args, **options):
        exports.append(options)
        time.sleep(0.2)
        return export_ctranslate2(*args, **options)

    monkeypatch.setattr(engines, "import_exporter", lambda kind: (export, 0))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: engines.exported("ctranslate2", model, tokenizer), range(2))
    assert first == second
    assert first.parent == cache
    model.config.confidence_curve = [[-1.0, 30.0]]  # changes no translation
    assert engines.exported("ctranslate2", model, tokenizer) == first
    assert exports == [{}]
    assert engines.exported("ctranslate2:int8", model, tokenizer) != first
    model.model.shared.weight.data[7, 0] += 1
    assert engines.exported("ctranslate2", model, tokenizer) != first
    assert exports == [{}, {"quantization": "int8"}, {}]
    sizes = sorted((path / "model.bin").stat().st_size for path in cache.iterdir() if path.is_dir())
    assert sizes[0] < sizes[1] == sizes[2]


def test_scores_are_the_engines_too(saved, tokenizer, cache):
    """CTranslate2 returns log P / |Y|^alpha, by which it ranks."""
    model = AutoModelForSeq2SeqLM.from_pretrained(saved)
    translator = pipeline("translation", model=model, tokenizer=tokenizer, engine="ctranslate2", split_sentences=False)
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


def test_the_pipelines_records_are_those_without_an_engine(trained, tokenizer, cache):
    model = copy.deepcopy(trained)  # it has learned these sentences by heart
    model.config.confidence_curve = [[-9.0, 10.0], [0.0, 90.0]]
    plain = pipeline("translation", model=model, tokenizer=tokenizer, return_alignment=True)
    engine = pipeline("translation", model=model, tokenizer=tokenizer, return_alignment=True, engine="ctranslate2")
    expected, found = plain(LINES[1:5]), engine(LINES[1:5])
    assert cache.exists()
    for record, other in zip(expected, found, strict=True):
        assert record["confidence"] > 10
        assert record["translation_text"] == other["translation_text"]
        assert record["alignment"] == other["alignment"]
        assert other["score"] == pytest.approx(record["score"], abs=1e-5)
        assert other["confidence"] == pytest.approx(record["confidence"], abs=1e-3)


def test_a_hub_pipeline_without_the_package_says_what_is_missing(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "vaswani_transformer.convert.engines", None)
    with pytest.raises(ImportError, match=r"^engine: .*; install the package vaswani_transformer, or leave "):
        pipeline("translation", model=str(saved), engine="ctranslate2")


def test_an_engine_that_is_not_installed_is_named_with_its_extra(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "vaswani_transformer.convert.ctranslate2_search", None)
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


UNUSUAL = ["a </s> b <pad>", "<unk> no <2de> tag", "Zoe\u0308 \u2028 x", "\U0001f408" * 40, "One. Two!  Three?"]


def by_model_and_by_engine(folder: Path, **options: object) -> tuple[str, str]:
    """What translate.py writes for `LINES` and `UNUSUAL` with the model, which is then remembered, and without it."""
    lines = [*LINES, *UNUSUAL]
    file = folder / "input"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = {"engine": "ctranslate2", "input": str(file), **options}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    expected = run_recipe("translate.py", *words)
    assert expected.returncode == 0, expected.stderr
    engine = open_remembered_engine(recipe_module("translate.py").TranslateArguments(**options))
    return expected.stdout, b"".join(engine.translate(0, lines)).decode()


SEARCHES = [
    {},
    {"split_sentences": False},
    {"num_return_sequences": 3},
    {"num_beams": 1, "max_new_tokens": 3},
    {"length_penalty": 0.0, "tokens_per_batch": 20},
]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_an_export_that_was_opened_before_translates_as_with_its_model(options, saved, cache, tmp_path):
    expected, found = by_model_and_by_engine(tmp_path, model=str(saved), **options)
    assert found == expected
    assert len(set(found.splitlines())) > 4


def test_so_does_a_directory_and_a_model_of_two_directions_into_one_of_them(cache, tmp_path):
    model = str(REPOSITORY / "model_cards" / "tatoeba-de-en")
    expected, found = by_model_and_by_engine(tmp_path, model=model, target_language="en")
    assert found == expected
    (directory,) = (path for path in cache.iterdir() if path.is_dir())
    other, found = by_model_and_by_engine(tmp_path, model=model, target_language="de", engine=str(directory))
    assert found == other != expected


def test_a_directory_that_was_opened_is_found_where_it_is_now(saved, cache, tmp_path):
    """Another export may be where it was."""
    first, moved = tmp_path / "first", tmp_path / "moved"
    first.mkdir()
    (first / "config.json").write_text("{}", encoding="utf-8")
    remember_export(saved, str(first), first)
    first.rename(moved)
    assert remembered_export(saved, str(moved)) == moved


def test_so_does_a_learned_table_with_sources_cut_to_it(tokenizer, cache, tmp_path):
    model = distinct(len(tokenizer), position_encoding="learned", max_position_embeddings=20)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    expected, found = by_model_and_by_engine(tmp_path, model=str(tmp_path / "model"))
    assert found == expected


def test_json_lines_have_the_columns_and_no_tags(cache, tmp_path, monkeypatch):
    model = str(REPOSITORY / "model_cards" / "tatoeba-de-en")
    by_model_and_by_engine(tmp_path, model=model, target_language="en")
    module = recipe_module("translate.py")
    given = {"model": model, "engine": "ctranslate2", "target_language": "en", "output": str(tmp_path / "out.jsonl")}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    (tmp_path / "input").write_text("Der Hund schläft.\n<2en> Ja.\n", encoding="utf-8")
    written = []
    for translate in (module.main, lambda: module.translate_without_torch(module.TranslateArguments(**given))):
        monkeypatch.setattr("sys.argv", [module.__file__, *words, "--overwrite", "true"])
        monkeypatch.setattr("sys.stdin", (tmp_path / "input").open(encoding="utf-8"))
        translate()
        written.append((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
        (tmp_path / "out.jsonl").unlink()
    assert written[0] == written[1]
    assert [json.loads(line)["de"] for line in written[1].splitlines()] == ["Der Hund schläft.", "Ja."]


def test_a_file_of_one_shard_that_nobody_began_is_translated_so_and_no_other(saved, cache, tmp_path):
    expected, _ = by_model_and_by_engine(tmp_path, model=str(saved))
    output, module = tmp_path / "output", recipe_module("translate.py")
    given = {"model": str(saved), "engine": "ctranslate2", "input": str(tmp_path / "input"), "output": str(output)}
    count = len(LINES) + len(UNUSUAL)
    for changes in ({"lines_per_shard": count - 1}, {"shard": "0/2"}):
        assert not module.translate_without_torch(module.TranslateArguments(**given | changes))
    one_shard = module.TranslateArguments(**given, lines_per_shard=count)
    (tmp_path / "output.shards").mkdir()
    assert not module.translate_without_torch(one_shard)
    (tmp_path / "output.shards").rmdir()
    assert not output.exists()
    assert module.translate_without_torch(one_shard)
    assert output.read_text(encoding="utf-8") == expected
    with pytest.raises(SystemExit, match="output exists already; name another file"):
        module.translate_without_torch(one_shard)


def test_what_needs_the_model_or_was_never_opened_is_not_left_to_an_export(saved, cache, tmp_path, monkeypatch):
    folder = shutil.copytree(saved, tmp_path / "model")
    given = {"model": str(folder), "engine": "ctranslate2", "output": "out.jsonl"}
    arguments = recipe_module("translate.py").TranslateArguments
    assert open_remembered_engine(arguments(**given)) is None
    by_model_and_by_engine(tmp_path, model=str(folder))
    assert open_remembered_engine(arguments(**given)) is not None
    for changes in ({"return_scores": True}, {"return_alignment": True}, {"engine": "ctranslate2:int8"}):
        assert open_remembered_engine(arguments(**given | changes)) is None
    with monkeypatch.context() as patch:
        patch.setattr("ctranslate2.get_cuda_device_count", lambda: 1)
        assert open_remembered_engine(arguments(**given)) is None
    config = (folder / "config.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(config.replace('"dropout": 0.1', '"dropout": 0.2'), encoding="utf-8")
    assert open_remembered_engine(arguments(**given)) is None
    (folder / "config.json").write_text(config, encoding="utf-8")
    (directory,) = (path for path in cache.iterdir() if path.is_dir())
    (directory / "model.bin").write_bytes(b"")
    assert open_remembered_engine(arguments(**given)) is None


@pytest.mark.system
def test_from_the_second_time_on_a_line_translate_without_torch(tmp_path):
    model = REPOSITORY / "model_cards" / "tatoeba-de-en"
    (tmp_path / "input").write_text("Der Hund schläft.\n", encoding="utf-8")
    options = ("--model", model, "--engine", "ctranslate2", "--target_language", "en")
    call_recipe("translate.py", *options, "--input", tmp_path / "input", "--output", tmp_path / "found")
    recipe = REPOSITORY / "recipes" / "translate.py"
    again = run_python(["-X", "importtime", recipe, *options], stdin="Der Hund schläft.\n")
    assert again.stdout == (tmp_path / "found").read_text(encoding="utf-8")
    imported = {line.rpartition("|")[2].strip() for line in again.stderr.splitlines()}
    assert "ctranslate2" in imported
    assert not imported & {"torch", "transformers", "datasets", "accelerate", "pandas", "nltk"}


CHAPTER = (REPOSITORY / "vaswani_transformer" / "convert" / "README.md").read_text(encoding="utf-8")
WAYS = {
    "the model": (),
    "`--engine ctranslate2`": ("--engine", "ctranslate2"),
    "`--engine onnx`": ("--engine", "onnx"),
    "`--ensemble`": ("--ensemble", "{second}"),
}


@pytest.mark.system
@pytest.mark.parametrize("way", WAYS)
def test_the_chapters_table_of_options_is_right(way, saved, tokenizer, cache, tmp_path, monkeypatch):
    if "onnx" in way:
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(shutil.copytree(saved, tmp_path / "model"))
    SavedModel("", ".", Path(), None, None).update_config(confidence_curve=[[-99.0, 10.0], [0.0, 90.0]])
    shutil.copytree(".", "runs/seed-2")
    Path("input").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    table = CHAPTER[CHAPTER.index("| option of `translate.py`") :].split("\n\n")[0]
    header, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    place = header[1:].index(way)
    given = ("--model", ".", "--input", "input", "--output", "out.jsonl", "--overwrite")
    given += tuple(word.format(second="runs/seed-2") for word in WAYS[way])
    for option, *cells in rows:
        cell, options = cells[place], option.split("`")[1].split()
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
