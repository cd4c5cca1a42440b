"""Model cards say what the run measured, in a form that the Hub's client reads."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from helpers import REPOSITORY
from huggingface_hub import EvalResult, ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results
from runs import run_results

from vaswani_transformer.parsing.model_card import PAPER_PARSING_SETTINGS, write_parsing_card
from vaswani_transformer.parsing.scoring import ParsingRecord
from vaswani_transformer.runs.model_card import write_model_card
from vaswani_transformer.runs.records import RunRecord
from vaswani_transformer.system.typed_json import from_json


# Cards of models begin with metadata; the chapter on benchmarks does not.
CARDS = [
    path for path in sorted((REPOSITORY / "model_cards").glob("*/README.md")) if path.read_bytes().startswith(b"---\n")
]


@pytest.fixture
def results() -> dict[str, Any]:
    """Results with all that a run may report, of which none depends on the machine."""
    return run_results(d_model=256, vocab_size=8000)


def write(path: Path, results: dict[str, Any]) -> ModelCard:
    write_model_card(path, from_json(RunRecord, results))
    return ModelCard.load(path)


def test_card_is_read_back_with_the_measured_numbers(results, tmp_path):
    card = write(tmp_path / "README.md", results)
    for fact in (
        "from English (`en`) to German (`de`).",
        "- Domain: image captions\n- Licence: cc-by-4.0\n- Size: 7,577,600 parameters, 30.3 MB in single precision\n",
        "- Speed: 124.8 sentences of the test set a second, by beam search, on 2 x Device 80\n",
        "| test, averaged model | 1014 | 41.23 | 60.12 | 5.43 |",
        "| test, a copy of the source | 1014 | 2.72 | 17.25 | - |",
        "| It's a dog. | Ein Hund. | Es ist ein Hund. | 43.2 |",
        results["run"]["command"],
        "28,994 pairs kept; dropped: 3 empty, 2 too_long, 1 ratio.\n- Attribution: the photographers of Flickr\n",
        "- Cost: 2.96e15 FLOPs by the paper's accounting, ",
        "; 1.10e15 FLOPs, 37.0% of that, counted from the matrix products\n",
        "- Rate: 9.88e11 FLOPs a second on each device, measured by large matrix products in bfloat16\n",
        "| d_model | 256 | 512 or 1,024 |",
        "|---|---|---|\n| 1 to 10 | 1,234 | 31.25 |\n| 61 or more | 7 | 8.00 |\n\nThe test set",
        "## Verdict\n\n- Better than a copy of the source on the test set: 41.23 sacreBLEU and 60.12 chrF; a copy has",
        "- Bad at: \\<b\\>...\\</b\\> around (-9.1 chrF), copying numbers (50.0%).\n",
        "sentences of more than 250 sub-words, which training left out",
        "| \\<b\\>...\\</b\\> around | 40 | 33.50 | 41.01 | 52.12 | 61.25 | 42.5% |\n",
        "| numbers | 38 | 50.0% |\n",
        "![Robustness](robustness.png)",
    ):
        assert fact in card.text, fact


def test_the_card_shows_what_only_some_runs_have(results, tmp_path):
    counts = {"sentences": 1000, "pairs": 0, "sources": 0, "targets": 0}
    results["data"]["in_train"] = {"validation": counts, "test": counts}
    text = write(tmp_path / "README.md", results).text
    for absent in ("Augmentation", "Errors by kind", "Also in the training corpus", "resumed"):
        assert absent not in text
    results["data"] |= {"in_train": {"validation": counts, "test": {**counts, "targets": 7}}, "augment": 0.1}
    results["data"]["cleaning"]["augmented"] = 2900
    results["test"]["pathologies"] = {"sentences": 200, "lines": {"blank": [7], "copied": [1, 2, 3]}}
    results["training"] |= {"warmup_steps": 70, "averaged": [], "resumed_from": "checkpoint-5500"}
    results["examples"][0] |= {"translation": "a | b\n*c* <img src=x> [d](e)"}
    results["model"]["longest_source"] = 61
    text = write(tmp_path / "README.md", results).text
    for fact in (
        "- Also in the training corpus: 0 pairs, 0 sources, 7 targets of the test set's 1,000\n",
        "dropped: 3 empty, 2 too_long, 1 ratio.\n- Also",
        "\n- Augmentation: 2,900 changed copies of pairs, added before",
        "(`--augment 0.1`)\n- Attribution",
        "|---|---|\n| blank | 0.5 % |\n| copied | 1.5 % |\n\n",
        "| warmup_steps | 70 of 1,000 | 4,000 |",
        "target tokens; resumed from checkpoint-5500\n",
        "sentences of more than 61 tokens, the longest trained on",
        "| test, last step |",
        r"| a \| b \*c\* \<img src=x\> \[d\](e) |",
    ):
        assert fact in text, fact
    assert "verage" not in text.replace("average_last", "")  # without checkpoints there is none


def test_metadata_are_what_the_hub_reads(results, tmp_path):
    data = results["data"]
    data |= {"test": ["user/pairs"], "dataset_config": "de-en"}
    path = tmp_path / "README.md"
    card = write(path, results)
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
        metric_name=f"sacreBLEU {results['test']['bleu']['signature']}",
        metric_value=round(results["test"]["bleu"]["score"], 2),
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
    assert card.data.eval_results == [result]


def test_the_snippets_of_a_card_translate_with_and_without_the_package(results, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(transformers, "pipeline", lambda *a, **k: calls.append((*a, k)) or str)
    for repository in ("user/vaswani-tiny", None):
        results["run"]["repository"] = repository
        for snippet in re.findall(
            r"^```python\n(.*?)^```", write(tmp_path / "README.md", results).content, re.M | re.S
        ):
            exec(snippet, {})
    assert calls == [
        ("translation", {"model": "user/vaswani-tiny", "trust_remote_code": True}),
        ("translation_en_to_de", {"model": "user/vaswani-tiny"}),
        ("translation_en_to_de", {"model": "."}),
    ]


def test_card_of_an_unscored_run_claims_no_score(results, tmp_path):
    del results["validation"], results["test"], results["test_copy"], results["examples"]
    del results["robustness"]
    card = write(tmp_path / "README.md", results)
    assert card.data.eval_results is None
    assert card.data.metrics is None
    assert "BLEU" not in card.content


def test_costs_and_settings_equal_to_the_papers_are_in_a_fold_at_the_end(results, tmp_path):
    text, fold = write(tmp_path / "README.md", results).text.split("<details>")
    assert fold.strip().endswith("</details>")
    for row in ("- Cost: ", "- Padding: ", "| num_heads | 8 |", "| adam_beta2 | 0.98 |"):
        assert row not in text
        assert f"\n{row}" in fold
    assert "\n| warmup_steps | 1,000 | 4,000 |\n" in text


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.parent.name)
def test_published_cards_name_a_clean_commit_a_command_and_hardware(path):
    for line in (r"- Commit: `[0-9a-f]{40}`", r"- Command: `.+`", r"- Hardware: .+"):
        assert re.search(rf"^{line}", path.read_text(encoding="utf-8"), re.M), line


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.parent.name)
def test_published_cards_are_made_of_the_results_beside_them(path: Path, tmp_path):
    results = path.with_name("all_results.json")
    record = json.loads(results.read_text(encoding="utf-8"))
    if "precision" not in record["settings"] or "recombined_copies" in record["data"]:
        pytest.skip("an earlier version of the package wrote the card; its commit is in it")
    if "constituency-parsing" in ModelCard.load(path).data.tags:
        write_parsing_card(tmp_path / "card.md", ParsingRecord.load(results))
    else:
        write_model_card(tmp_path / "card.md", RunRecord.load(results))
    assert (tmp_path / "card.md").read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_the_card_of_a_parser_has_the_papers_settings_and_both_scores(tmp_path):
    record = ParsingRecord.load(REPOSITORY / "model_cards" / "craft-parsing" / "all_results.json")
    write_parsing_card(tmp_path / "card.md", record)
    text = (tmp_path / "card.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([^|]+) \| (.+) \|$", text, re.M)
    stated = {name: each if isinstance(each, str) else f"{each:,}" for name, each in PAPER_PARSING_SETTINGS.items()}
    assert {name: paper for name, _, paper in rows if name in stated} == stated
    ours = record.validation.constrained
    f1 = f"{ours.all_sentences.f1:.1f} | {ours.evalb.f1:.1f} ({ours.evalb.errors + ours.evalb.skipped} left out)"
    assert f"| this model, constrained | train.mrg.gz | {f1} |" in text
