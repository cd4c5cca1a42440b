"""The sweep over Table 3: two rows by the real recipe; and, by a stand-in for it, what is run, and what remains."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import yaml
from helpers import call_recipe, option_words, recipe_module, write_splits
from runs import run_results

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.experiments.sweep import shares
from vaswani_transformer.model.configuration_vaswani import PAPER_VARIANTS


pytestmark = pytest.mark.system

# Notes what it is called with, and scores; fails on a row, or stays at it until it is asked to end, if told to.
STAND_IN = """
import ctypes, json, os, signal, sys, time
from pathlib import Path

end = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(end))  # PR_GET_PDEATHSIG
options = {name.lstrip("-"): value for name, value in zip(sys.argv[1::2], sys.argv[2::2])}
row, output = options["variant"], Path(options["output_dir"])
signal.signal(signal.SIGTERM, lambda *_: (Path(os.environ["CALLS"]).with_name("asked").touch(), os._exit(1)))
with open(os.environ["CALLS"], "a") as calls:
    noted = {"gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "end": end.value, "pid": os.getpid()}
    calls.write(json.dumps({**options, **noted}) + "\\n")
if row == os.environ.get("FAILS"):
    sys.exit("train_wmt.py: out of [memory]")
if row == os.environ.get("STAYS"):
    time.sleep(600)
results = json.loads(Path(os.environ["RESULTS"]).read_text())
results["validation"]["bleu"]["score"] = 10.0 * int(options["seed"]) + len(row)
(output / "part.tmp").write_text(json.dumps(results))
(output / "part.tmp").replace(output / "all_results.json")
"""


@pytest.fixture(scope="module")
def recipe():
    return recipe_module("reproduce_table3.py")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> dict[str, list[str]]:
    return write_splits(tmp_path_factory.mktemp("corpus"), train=300, validation=12)


@pytest.fixture
def settings(corpus, tmp_path) -> dict:
    return {
        **corpus,
        "output_dir": str(tmp_path / "sweep"),
        "vocab_size": 320,
        "num_proc": 1,
        "width": 0.0625,
        "depth": 0.5,
        "rows": ["base", "C-N2"],
        "source_tokens": 400,
        "target_tokens": 400,
        "max_steps": 4,
        "warmup_steps": 2,
        "save_steps": 2,
        "report_to": "none",
    }


@pytest.fixture
def sweep(recipe, settings):
    """Run the recipe with these settings, some of them changed; returns its last words, None where all went well."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*options: str, **changes) -> str | int | None:
        try:
            call_recipe(recipe, *option_words({**settings, **changes}), *options)
        except SystemExit as stop:
            return stop.code
        return None

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def calls(recipe, tmp_path, monkeypatch):
    """Put the stand-in in the place of train_wmt.py; returns how it was called, as a list of options."""
    (tmp_path / "stand_in.py").write_text(STAND_IN, encoding="utf-8")
    (tmp_path / "results.json").write_text(json.dumps(run_results()), encoding="utf-8")
    noted = tmp_path / "calls.jsonl"
    monkeypatch.setattr(recipe, "TRAIN", tmp_path / "stand_in.py")
    monkeypatch.setenv("CALLS", str(noted))
    monkeypatch.setenv("RESULTS", str(tmp_path / "results.json"))

    def read() -> list[dict]:
        lines = noted.read_text(encoding="utf-8").splitlines() if noted.exists() else []
        noted.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    return read


def load_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def trained(calls: list[dict]) -> list[tuple[str, str]]:
    return sorted((call["variant"], call["seed"]) for call in calls)


def test_two_rows_are_trained_scored_and_reported(sweep, settings, capsys):
    assert sweep("--parallel", "2") is None
    directory = Path(settings["output_dir"])
    first = {row: load_json(directory / row / "seed-1" / "all_results.json") for row in settings["rows"]}
    for row, results in first.items():
        sizes = {"d_model": 32, "d_ff": 128, "d_k": 4, "d_v": 4}
        layers = {"base": 3, "C-N2": 1}[row]
        config = VaswaniConfig(**sizes, encoder_layers=layers, decoder_layers=layers, vocab_size=320)
        assert results["model"]["parameters"] == VaswaniForConditionalGeneration(config).num_parameters()
        assert results["training"]["averaged"] == ["checkpoint-4"]
        assert results["settings"]["seed"] == 1
        assert "test" not in results
    assert first["base"]["data"]["prepared"] == first["C-N2"]["data"]["prepared"] == "data"

    report = load_json(directory / "table3.json")
    assert report["facts"][0] == "Corpus: 300 pairs (the paper: about 4.5 million)"
    for row, results in first.items():
        assert report["rows"][row]["perplexity"]["values"] == [results["validation"]["perplexity"]["perplexity"]]
        assert report["rows"][row]["cost"]["counted"] == results["training"]["cost"]["counted"]
    text = (directory / "report.md").read_text(encoding="utf-8")
    assert re.search(r"^\| C-N2 +\| encoder_layers 1, decoder_layers 1 +\|", text, re.M)
    shown = capsys.readouterr().out
    assert f"C-N2, seed 1: sacreBLEU {first['C-N2']['validation']['bleu']['score']:.2f}, perplexity" in shown
    assert "Table 3" in shown


def test_every_row_and_seed_is_trained_once_also_when_added_later(recipe, sweep, calls, settings, monkeypatch):
    monkeypatch.setattr(recipe, "shares", lambda *args: [{"CUDA_VISIBLE_DEVICES": "4"}])
    assert sweep(seeds=[1, 2]) is None
    made = calls()
    assert {(call["gpu"], call["end"]) for call in made} == {("4", signal.SIGTERM)}  # when the sweep is killed
    assert trained(made) == [("C-N2", "1"), ("C-N2", "2"), ("base", "1"), ("base", "2")]
    assert [call["seed"] for call in made] == ["1", "1", "2", "2"]  # whole tables first
    directory = Path(settings["output_dir"])
    for call in made:
        assert call["output_dir"] == str(directory / call["variant"] / f"seed-{call['seed']}")
        assert (call["average_last"], call["resume"], call["prepared"]) == ("1", "False", str(directory / "data"))
        passed_on = yaml.safe_load(Path(call["config"]).read_text(encoding="utf-8"))
        assert passed_on.items() >= {"max_steps": 4, "vocab_size": 320, "train": settings["train"]}.items()
    assert sweep(seeds=[1, 2, 1]) is None
    assert calls() == []
    for name in ("seed-1.bak", "seed-", "seed-old"):  # a user's own, which are not reported
        (directory / "base" / name).mkdir()
    assert sweep(seeds=[3, 3], rows=["base", "A-h1"]) is None
    assert trained(calls()) == [("A-h1", "3"), ("base", "3")]
    report = load_json(directory / "table3.json")
    assert {row: found["seeds"] for row, found in report["rows"].items()} == {
        "base": [1, 2, 3],
        "A-h1": [3],
        "C-N2": [1, 2],
    }
    assert report["rows"]["base"]["bleu"]["values"] == [14, 24, 34]


def test_a_row_that_fails_stops_no_other_and_is_tried_again(sweep, calls, monkeypatch, capsys, settings):
    monkeypatch.setenv("FAILS", "base")
    log = Path(settings["output_dir"]) / "base" / "seed-1" / "train.log"
    assert sweep() == f"reproduce_table3.py: base, seed 1 failed, see {log}"
    assert "base, seed 1: failed with status 1: train_wmt.py: out of [memory]" in capsys.readouterr().out
    assert trained(calls()) == [("C-N2", "1"), ("base", "1")]
    assert "| C-N2 " in (Path(settings["output_dir"]) / "report.md").read_text(encoding="utf-8")
    monkeypatch.delenv("FAILS")
    (log.parent / "_run.json").touch()  # a training was begun there
    assert sweep() is None
    (again,) = calls()
    assert (again["variant"], again["seed"], again["resume"]) == ("base", "1", "True")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_ends_its_trainings_and_continues_later(
    sweep, calls, monkeypatch, recipe, settings, tmp_path, number, capsys
):
    monkeypatch.setenv("STAYS", "base")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs behind

    def interrupt() -> None:
        called, finished = tmp_path / "calls.jsonl", tmp_path / "sweep" / "C-N2" / "seed-1" / "all_results.json"
        while not (called.exists() and "base" in called.read_text("utf-8") and finished.exists()):
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    assert sweep("--parallel", "2") == 128 + number
    assert capsys.readouterr().err.endswith("reproduce_table3.py: interrupted; repeat the command to continue\n")
    made = calls()
    assert trained(made) == [("C-N2", "1"), ("base", "1")]
    (stayed,) = [call["pid"] for call in made if call["variant"] == "base"]
    with pytest.raises(ProcessLookupError):
        os.kill(stayed, 0)
    assert (tmp_path / "asked").exists()
    assert "| C-N2 " in (tmp_path / "sweep" / "report.md").read_text(encoding="utf-8")
    signal.signal(signal.SIGINT, before)
    monkeypatch.delenv("STAYS")
    assert sweep() is None
    assert trained(calls()) == [("base", "1")]


def test_another_sweep_in_the_directory_is_left_alone(sweep, calls, settings, corpus, tmp_path):
    assert sweep() is None
    calls()
    report = (tmp_path / "sweep" / "report.md").read_bytes()
    assert "differs in width (0.0625 then, 0.125 now)" in sweep(width=0.125)
    assert "differs in max_steps (4 then, 5 now)" in sweep("--max_steps", "5")
    changed = tmp_path / "changed.en"
    changed.write_text(Path(corpus["train"][0]).read_text(encoding="utf-8").upper(), encoding="utf-8")
    assert "train" in sweep(train=[str(changed), corpus["train"][1]])
    assert calls() == []
    assert (tmp_path / "sweep" / "report.md").read_bytes() == report


def test_a_default_that_depends_on_other_options_is_the_same_sweep_as_its_value(sweep, calls, settings, tmp_path):
    settings |= dict.fromkeys(("source_tokens", "target_tokens", "warmup_steps"))
    assert sweep() is None
    calls()
    begun = load_json(tmp_path / "sweep" / "sweep.json")
    chosen = {"source_tokens": 25000, "target_tokens": 25000, "warmup_steps": 4000, "learning_rate_factor": 1.0}
    earlier = {**chosen, "lr_scheduler_type": "inverse_sqrt", "learning_rate": 5e-5}  # as earlier commits recorded them
    assert begun.items() >= earlier.items()
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps({**begun, "include_num_input_tokens_seen": "no"}))
    assert "include_num" not in (tmp_path / "sweep" / "training.yaml").read_text(encoding="utf-8")
    assert sweep(**chosen) is None
    assert calls() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "base", "Z-9"], "there is no 'Z-9' in Table 3"),
        (["--width", "0.01"], "width: 0.01 makes d_model of row base 5.12; it must be a whole number"),
        (["--heads", "5"], "heads: 5 do not divide d_model of row base, 32"),
        (["--push_to_hub", "--hub_token", "secret"], "a sweep pushes nothing"),
        (["--variant", "big"], "variant: the rows of Table 3 decide this; give --rows"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_errors_before_any_training(sweep, calls, tmp_path, monkeypatch, options, message):
    monkeypatch.setenv("HF_TOKEN", "none")  # so that the one that is set here is forgotten
    assert message in sweep(*options)
    assert calls() == []
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("heads", [4, 8])
def test_heads_scale_the_rows_that_do_not_vary_them(recipe, heads):
    for row in PAPER_VARIANTS:
        paper = VaswaniConfig.from_variant(row)
        config = VaswaniConfig.from_variant(row, **recipe.scaled_sizes(row, recipe.Scale(0.25, 0.5, heads)))
        assert config.num_heads == (heads if paper.num_heads == 8 else paper.num_heads), row
        if paper.d_k * paper.num_heads == paper.d_model:
            assert config.d_k * config.num_heads == config.d_v * config.num_heads == config.d_model, row
        else:  # rows B
            assert (config.d_k, config.d_v) == (paper.d_k / 4, 128 / heads)


def test_trainings_at_once_share_the_machine(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    for parallel, threads in ((None, "6"), (2, "3"), (4, "1"), (8, "1")):
        assert shares(True, parallel) == [{"OMP_NUM_THREADS": threads}] * (parallel or 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for visible, parallel, gpus in (("", None, "0 1 2"), ("", 5, "0 1 2 0 1"), ("7,GPU-5,2", None, "7 GPU-5 2")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert shares(False, parallel) == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus.split()]
