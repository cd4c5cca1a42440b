"""Files that runs have written load, and come out as they went in."""

import json

import pytest
from helpers import REPOSITORY
from runs import run_results

from vaswani_transformer.experiments.comparison import SweepRecord
from vaswani_transformer.parsing.scoring import ParsingRecord
from vaswani_transformer.runs.model_card import compare_with_paper
from vaswani_transformer.runs.records import RunRecord
from vaswani_transformer.system.typed_json import from_json, to_json


PUBLISHED = {
    "multi30k-student-en-de/all_results.json": RunRecord,
    "table3.json": SweepRecord,
    "craft-parsing/all_results.json": ParsingRecord,
}


# Entries that earlier versions wrote.
EARLIER = {"curve", "others", "right_branching"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_the_same_when_it_is_saved_again(name, tmp_path):
    path = REPOSITORY / "model_cards" / name
    PUBLISHED[name].load(path).save(tmp_path / "saved.json")
    text = path.read_text("utf-8")
    published = json.loads(text, object_pairs_hook=lambda pairs: dict(each for each in pairs if each[0] not in EARLIER))
    assert json.loads((tmp_path / "saved.json").read_text("utf-8")) == published


def test_scores_are_those_that_there_are():
    results = run_results()
    record = from_json(RunRecord, results)
    assert record.scores == {"validation": record.validation, "test_copy": record.test_copy, "test": record.test}
    assert record.titled_scores == {
        "validation, averaged model": record.validation,
        "test, a copy of the source": record.test_copy,
        "test, averaged model": record.test,
    }
    del results["validation"], results["test"], results["test_copy"]
    assert from_json(RunRecord, results).scores == {}
    assert "test" not in to_json(from_json(RunRecord, results))


def test_departures_are_the_options_with_other_values_than_the_papers():
    settings = from_json(RunRecord, run_results()).settings
    values = vars(settings) | settings.others
    departures = {each[:3] for each in compare_with_paper(values | {"average_last": 20, "muon": True}) if each.departs}
    assert departures == {
        ("source_tokens", "1,500", "25,000"),
        ("target_tokens", "1,400", "25,000"),
        ("warmup_steps", "1,000", "4,000"),
        ("learning_rate_factor", "0.8", "1"),
        ("muon", "true", "false"),
    }
    assert not {"muon", "cooldown"} & {each.name for each in compare_with_paper(values)}  # neither uses them


def test_trackers_see_whether_the_model_is_an_average():
    results = run_results()
    assert from_json(RunRecord, results).metrics["test_averaged_bleu"] == results["test"]["bleu"]["score"]
    results["training"]["averaged"] = []
    metrics = from_json(RunRecord, results).metrics
    assert metrics["eval_final_bleu"] == results["validation"]["bleu"]["score"]
    assert not [name for name in metrics if "averaged" in name]
