"""What recipes that train share, apart from the trainings that test_train_wmt.py runs with it."""

import hashlib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.launch.signals import SignalCheckpoint
from vaswani_transformer.runs.run_arguments import DataArguments, ModelArguments, RecipeTrainingArguments
from vaswani_transformer.runs.training_run import TrainingRun


@pytest.fixture
def run(tmp_path):
    args = RecipeTrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    with ExitStack() as exit_stack:
        yield TrainingRun(args, SignalCheckpoint(), exit_stack)


def test_a_row_of_table_3_with_changes_in_two_languages():
    config = ModelArguments(variant="big", d_ff=64).configure("en", "fr")
    assert (config.d_model, config.d_ff, config.source_language, config.target_language) == (1024, 64, "en", "fr")
    assert (config.num_heads, config.dropout) == (16, 0.3)


def test_each_input_is_read_for_its_digest_once_and_not_when_it_is_known(run, tmp_path, monkeypatch):
    names = [str(tmp_path / name) for name in ("a.en", "a.de", "b.en", "b.de")]
    for name in names:
        Path(name).write_text("one two three\n" * 9, encoding="utf-8")
    prepared = str(tmp_path / "prepared")
    data = DataArguments(train=names[:2], test=names[2:], vocab_size=259, num_proc=1, prepared=prepared)
    read, digest = Counter[str](), hashlib.file_digest

    def counted(file, algorithm):
        read[file.name] += 1
        return digest(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    run.directory, run.args.eval_strategy = tmp_path / "run", "no"
    run.load(data, VaswaniConfig())
    assert [read[name] for name in names] == [1, 1, 1, 1]

    read.clear()
    run.directory = tmp_path / "another"
    run.load(data, VaswaniConfig())
    assert not read.keys() & {*names}


def test_the_last_checkpoint_is_scored_beside_its_average(run, tmp_path):
    assert run.models_to_score({"validation"}) == {"validation": ("validation", tmp_path)}
    run.averaging.averaged = [Path("checkpoint-4")]  # the same weights
    assert run.models_to_score({"test"}) == {"test": ("test", tmp_path)}
    run.averaging.averaged = [Path("checkpoint-2"), Path("checkpoint-4")]
    assert run.models_to_score({"test"}) == {
        "test": ("test", tmp_path),
        "test_last_checkpoint": ("test", Path("checkpoint-4")),
    }
