"""Model cards say what the run measured, in a form that the Hub's client reads."""

import re
import shlex
import subprocess
import sys

import pytest
import torch
from conftest import REPOSITORY
from huggingface_hub import ModelCard

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.hub import describe_run, write_model_card


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
    assert run["command"].endswith(shlex.join(sys.argv))
    if (REPOSITORY / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert run["commit"].removesuffix("-dirty") == head.stdout.strip()


def test_command_is_the_launchers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from vaswani_transformer.hub import describe_run; print(describe_run()['command'])")
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    for launcher in ([], launch):
        command = [*launcher, str(script), "--name", "two words"]
        result = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
        assert result.stdout.splitlines()[-1] == shlex.join(["python", *command])


@pytest.mark.parametrize("path", sorted((REPOSITORY / "model_cards").glob("*.md")), ids=lambda path: path.stem)
def test_published_cards_have_a_source_for_their_numbers(path):
    card = ModelCard.load(path)
    for metric in card.data.eval_results:
        assert f"{metric.metric_value:.2f}" in card.text
        assert metric.metric_name.removeprefix("sacreBLEU ") in card.text
    commit = re.search(r"^- Commit: `([0-9a-f]{40})`", card.text, re.M)
    assert commit, "the commit must be recorded, and clean"
    assert re.search(r"^- Command: `.+`", card.text, re.M)
    assert re.search(r"^- Hardware: .+", card.text, re.M)
