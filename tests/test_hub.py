"""Model cards say what the run measured, in a form that the Hub's client reads."""

import copy
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import REPOSITORY
from huggingface_hub import EvalResult, ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.hub import describe_run, published, write_model_card


# Those of models, which begin with metadata, and not the reports of experiments.
CARDS = [path for path in sorted((REPOSITORY / "model_cards").glob("*.md")) if path.read_bytes().startswith(b"---\n")]


@pytest.fixture
def results() -> dict:
    bleu = {"score": 41.23456, "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"}
    scores = {"sentences": 1000, "bleu": bleu, "perplexity": {"perplexity": 5.4321}}
    return {
        "run": describe_run(),
        "data": {
            "source_language": "en",
            "target_language": "de",
            "train": ["data/train.en.gz", "data/train.de.gz"],
            "test": ["data/test.en.gz", "data/test.de.gz"],
            "cleaning": {"empty": 3, "too_long": 2, "ratio": 1, "kept": 28994},
        },
        "model": {"parameters": 7577600, **VaswaniConfig(d_model=256).to_dict()},
        "settings": {
            "source_tokens": 1500,
            "target_tokens": 1400,
            "warmup_steps": 1000,
            "learning_rate_factor": 0.8,
            "average_last": 5,
        },
        "training": {
            "seconds": 3000.0,
            "steps": 6000,
            "epochs": 18.5,
            "target_tokens": 7654321,
            "padding_share": 0.0321,
            "processes": 1,
            "averaged": ["checkpoint-5500", "checkpoint-6000"],
            "resumed_from": None,
        },
        "test": scores,
        "examples": [{"source": "It's a dog.", "translation": "Ein Hund.", "reference": "Es ist ein Hund."}],
    }


def test_card_is_read_back_with_the_measured_numbers(results, tmp_path):
    write_model_card(tmp_path / "README.md", results)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.language == ["en", "de"]
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "translation")
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("sacrebleu", 41.23)
    assert results["test"]["bleu"]["signature"] in result.metric_name
    for fact in (
        "| 1000 | 41.23 | 5.43 |",
        results["run"]["command"],
        results["run"]["commit"],
        "28,994 pairs kept; dropped: 3 empty, 2 too_long, 1 ratio",
        "50.0 minutes",
        "data/train.en.gz and data/train.de.gz",
        "7,577,600",
        "checkpoint-5500, checkpoint-6000",
        "| d_model | 256 | 512 (big: 1024) |",
        "| target_tokens | 1,400 | 25,000 |",
    ):
        assert fact in card.text, fact


@pytest.fixture
def complete(results) -> dict:
    """Results with all that a run may report, of which none depends on the machine."""
    results["run"] = {
        "repository": "user/vaswani-tiny",
        "command": "python recipes/train_wmt.py --max_steps 6000",
        "commit": "31e3b36a105b7266c9336be7cd25a926b1d849cc",
        "date": "2026-11-21",
        "hardware": "2 x Device 80",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
    }
    results["data"] |= {"license": "cc-by-4.0", "datasets": ["user/pairs"], "max_length": 250}
    results["training"]["cost"] = {
        "by_the_papers_accounting": 1.2345e16,
        "counted": 4.567e15,
        "rate": 9.876e11,
        "utilisation": 0.36995,
        "dtype": "bfloat16",
    }
    results["validation"] = copy.deepcopy(results["test"])
    return results


def altered(value: Any, key: str = "") -> Any:
    """Results in which every number, and every digit of a text, is another."""
    if isinstance(value, dict):
        return {name: altered(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [altered(item) for item in value]
    if isinstance(value, str):
        return value.translate(str.maketrans("0123456789", "3456789012"))
    return value * 3 + 1 if isinstance(value, int) and not isinstance(value, bool) else value and value * 1.37


def numbers(card: ModelCard) -> list[str]:
    """Numbers of a card, metadata included, but for the column of the paper's settings."""
    content = re.sub(r"[^|\n]*\|$", "", card.content, flags=re.M)
    return re.findall(r"\d[\d,]*(?:\.\d+)*(?:e\d+)?%?", content)


def test_every_number_is_the_runs_or_the_papers(complete, tmp_path):
    write_model_card(tmp_path / "one.md", complete)
    write_model_card(tmp_path / "other.md", altered(complete))
    one, other = (numbers(ModelCard.load(tmp_path / name)) for name in ("one.md", "other.md"))
    assert len(one) > 40
    # What two runs that share no number have in common: the paper, its section on decoding, and its Table 2.
    common = [number for number, another in zip(one, other, strict=True) if number == another]
    assert common == ["1706.03762", "6.1", "3.3e18", "2.3e19"]


def test_costs_are_those_of_the_results(complete, tmp_path):
    write_model_card(tmp_path / "README.md", complete)
    text = ModelCard.load(tmp_path / "README.md").text
    cost, line = (
        complete["training"]["cost"],
        re.search(r"^- Cost: (\S+) FLOPs by .*; (\S+) FLOPs, (\S+)% of", text, re.M),
    )
    assert float(line[1]) == pytest.approx(cost["by_the_papers_accounting"], rel=5e-3)
    assert float(line[2]) == pytest.approx(cost["counted"], rel=5e-3)
    assert float(line[3]) / 100 == pytest.approx(cost["utilisation"], abs=5e-4)
    rate = re.search(r"^- Rate: (\S+) FLOPs a second .* in bfloat16$", text, re.M)
    assert float(rate[1]) == pytest.approx(cost["rate"], rel=5e-3)


def test_settings_stand_beside_those_of_table_3(results, tmp_path):
    write_model_card(tmp_path / "README.md", results)
    rows = re.findall(r"^\| (\w+) \| (\S+) \| (.+) \|$", ModelCard.load(tmp_path / "README.md").text, re.M)
    papers = {field: paper for field, _, paper in rows}
    base, big = (VaswaniConfig.from_variant(name) for name in ("base", "big"))
    for field in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout"):
        ours, larger = getattr(base, field), getattr(big, field)
        assert papers[field] == (f"{ours}" if ours == larger else f"{ours} (big: {larger})")


def test_metadata_are_what_the_hub_reads(complete, tmp_path):
    data = complete["data"]
    data |= {"test": ["user/pairs"], "dataset_config": "de-en"}
    path = tmp_path / "README.md"
    write_model_card(path, complete)
    metadata = metadata_load(path)
    name, (result,) = model_index_to_eval_results(metadata.pop("model-index"))
    assert name == "vaswani-tiny"
    assert result == EvalResult(
        task_type="translation",
        task_name="Translation en-de",
        dataset_type="user/pairs",
        dataset_name="user/pairs",
        dataset_config="de-en",
        dataset_split="test",
        metric_type="sacrebleu",
        metric_name=f"sacreBLEU {complete['test']['bleu']['signature']}",
        metric_value=round(complete["test"]["bleu"]["score"], 2),
    )
    assert metadata == {
        "language": ["en", "de"],
        "license": "cc-by-4.0",
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["vaswani", "translation"],
        "datasets": ["user/pairs"],
        "metrics": ["sacrebleu"],
    }
    card = ModelCard.load(path)
    assert card.data.eval_results == [result]
    card.save(tmp_path / "again.md")
    assert metadata_load(tmp_path / "again.md") == metadata_load(path)


@pytest.mark.parametrize(
    ("section", "entry", "lines"),
    [
        ("data", "license", ["license:"]),
        ("data", "datasets", ["datasets:", "- user/pairs"]),
        ("training", "cost", ["- Cost:", "- Rate:"]),
        ("settings", "average_last", ["| average_last |"]),
        ("model", "label_smoothing", ["| label_smoothing |"]),
    ],
)
def test_an_absent_entry_leaves_no_line(complete, tmp_path, section, entry, lines):
    write_model_card(tmp_path / "with.md", complete)
    del complete[section][entry]
    write_model_card(tmp_path / "without.md", complete)
    before, after = ((tmp_path / name).read_text("utf-8").splitlines() for name in ("with.md", "without.md"))
    gone = [line for line in before if line not in after]
    assert len(gone) == len(lines)
    assert all(line.startswith(beginning) for line, beginning in zip(gone, lines, strict=True))
    assert after == [line for line in before if line not in gone]


def test_a_run_without_checkpoints_claims_no_average(results, tmp_path):
    results["training"]["averaged"] = []
    write_model_card(tmp_path / "README.md", results)
    text = ModelCard.load(tmp_path / "README.md").text
    assert "| test, last step |" in text
    assert "verage" not in text.replace("average_last", "")


def test_a_resumed_run_says_so(complete, tmp_path):
    complete["training"]["resumed_from"] = "checkpoint-5500"
    write_model_card(tmp_path / "README.md", complete)
    text = ModelCard.load(tmp_path / "README.md").text
    assert [line.split(":")[0] for line in text.splitlines() if "resumed from checkpoint-5500" in line] == ["- Time"]


def test_a_repository_is_used_by_its_name_with_and_without_the_package(results, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(transformers, "pipeline", lambda *a, **k: calls.append((a, k)) or calls.append)
    example, path = results["examples"][0]["source"], tmp_path / "README.md"
    for repository in ("user/vaswani-tiny", None):
        results["run"]["repository"] = repository
        write_model_card(path, results)
        for snippet in re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S):
            exec(snippet, {})
            calls.append("vaswani_transformer" in snippet)
    assert calls == [
        (("translation",), {"model": "user/vaswani-tiny", "trust_remote_code": True}),
        example,
        False,
        (("translation_en_to_de",), {"model": "user/vaswani-tiny"}),
        example,
        True,
        (("translation_en_to_de",), {"model": "path/to/this/directory"}),
        example,
        True,
    ]


def test_card_of_an_unscored_run_claims_no_score(results, tmp_path):
    del results["test"], results["examples"]
    write_model_card(tmp_path / "README.md", results)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.eval_results is None
    assert card.data.metrics is None
    assert "BLEU" not in card.content


def test_run_is_described_by_command_commit_machine_and_versions():
    run = describe_run()
    assert run["versions"]["torch"] == torch.__version__
    assert run["hardware"]
    interpreter, program = run["command"].split()[:2]
    assert (interpreter, Path(program).name) == ("python", Path(sys.argv[0]).name)
    assert not Path(program).is_absolute()
    if (REPOSITORY / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert run["commit"].removesuffix("-dirty") == head.stdout.strip()


def test_command_is_the_launchers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from vaswani_transformer.hub import describe_run; print(describe_run()['command'])")
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    for launcher in ([], launch):
        command = [
            *launcher,
            str(script),
            "--name",
            "two words",
            "--hub_token",
            "secret",
            "--hub_token=secret",
            "--last",
        ]
        result = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
        shown = [*launcher, script.name, "--name", "two words", "--hub_token", "...", "--hub_token=...", "--last"]
        assert result.stdout.splitlines()[-1] == shlex.join(["python", *shown])


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_published_cards_have_a_source_for_their_numbers(path):
    card = ModelCard.load(path)
    for metric in card.data.eval_results:
        assert f"{metric.metric_value:.2f}" in card.text
        assert metric.metric_name.removeprefix("sacreBLEU ") in card.text
    commit = re.search(r"^- Commit: `([0-9a-f]{40})`", card.text, re.M)
    assert commit, "the commit must be recorded, and clean"
    assert re.search(r"^- Command: `.+`", card.text, re.M)
    assert re.search(r"^- Hardware: .+", card.text, re.M)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_published_cards_are_made_of_the_results_beside_them(path: Path, tmp_path):
    results = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    write_model_card(tmp_path / "card.md", results, picture=f"{path.stem}.png")
    assert (tmp_path / "card.md").read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("runs/data", "runs/data"),
        ("wmt/wmt14", "wmt/wmt14"),
        ("/home/alice/train.en", "train.en"),
        ("~/train.en", "train.en"),
        ("../alice/train.en", "train.en"),
        ("data/../train.en", "train.en"),
        (["/home/alice/a.en", "b.de"], ["a.en", "b.de"]),
        (None, None),
        (3, 3),
    ],
)
def test_published_paths_tell_of_no_user(value, shown):
    assert published(value) == shown
    assert published(str(Path.cwd() / "runs" / "a")) == "runs/a"


def test_a_published_command_tells_of_no_user(monkeypatch, tmp_path):
    options = ["--model", "/home/alice/m", "--output=/home/alice/o", "--text=a=/b", str(tmp_path), "two words"]
    monkeypatch.setattr(sys, "argv", [str(Path.cwd() / "recipes" / "x.py"), *options])
    expected = f"python recipes/x.py --model m --output=o --text=a=/b {tmp_path.name} 'two words'"
    assert describe_run()["command"] == expected
