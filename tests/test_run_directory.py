"""The output directory of a training: lock, record, and what it refuses."""

import errno
import fcntl
from dataclasses import fields
from inspect import get_annotations
from pathlib import Path
from typing import Any

import pytest

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.data.preparation import identify_inputs
from vaswani_transformer.options.data import DataArguments
from vaswani_transformer.options.training import ModelArguments, RecipeTrainingArguments
from vaswani_transformer.runs.records import ParentModel
from vaswani_transformer.runs.run_directory import load_record, open_run, record_settings, training_settings
from vaswani_transformer.system.files import locked


MODEL = {"d_model": 16, "d_ff": 16, "num_heads": 2, "dropout": 0.1}
# What may change when a training is resumed.
FREE = ("max_steps", "num_train_epochs", "max_minutes", "gradient_accumulation_steps", "average_last", "push_to_hub")


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    for name in ("a.en", "a.de", "b.de"):
        (tmp_path / name).write_text(f"{name}\n", encoding="utf-8")
    return [str(tmp_path / "a.en"), str(tmp_path / "a.de")]


def describe(corpus: list[str], parent: ParentModel | None = None, **changes: Any) -> dict[str, Any]:
    """The settings of a training, with `changes`."""
    data = {"train": corpus, "source_language": "en", "target_language": "de"}
    data |= {name: value for name, value in changes.items() if name in vars(DataArguments())}
    config = VaswaniConfig(**{name: changes.get(name, value) for name, value in MODEL.items()})
    args = RecipeTrainingArguments(source_tokens=400, target_tokens=400, report_to="none")
    for name in changes.keys() & vars(args).keys():
        setattr(args, name, changes[name])
    arguments = DataArguments(**data)
    return training_settings(arguments, config, args, identify_inputs(arguments), parent)


def begin(directory: Path, settings: dict[str, Any], resume: bool = False) -> Path | None:
    with open_run(directory, settings, resume) as checkpoint:
        return checkpoint


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"both_directions": True}, "both_directions (False then, True now)"),
        ({"target_language": "fr"}, "target_language (de then, fr now)"),
        ({"synthetic_ratio": 2.0, "synthetic": ["phrasebook"]}, "synthetic_ratio (1.0 then, 2.0 now)"),
        ({"d_ff": 32}, "d_ff (16 then, 32 now)"),
        ({"parent": ParentModel(name="m", is_on_hub=False, sha256="5")}, "model (None then, m now)"),
        ({"target_tokens": 300}, "target_tokens (400 then, 300 now)"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha (None then, 5.0 now)"),
        ({"muon": True, "seed": 7}, "seed (42 then, 7 now), muon (False then, True now)"),
    ],
)
def test_another_training_is_not_resumed(tmp_path, corpus, changes, difference):
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    before = (directory / "_run.json").read_bytes()
    with pytest.raises(ValueError, match="holds another training") as refused:
        begin(directory, describe(corpus, **changes), resume=True)
    assert f" {difference}" in str(refused.value)
    assert (directory / "_run.json").read_bytes() == before
    assert begin(directory, describe(corpus), resume=True) is None


def test_a_cooldown_has_one_length(tmp_path, corpus):
    lengths = {"max_steps": 100, "num_train_epochs": 4.0, "max_minutes": 20.0}
    begin(tmp_path, describe(corpus, cooldown=0.5, **lengths))
    for name, value in lengths.items():
        with pytest.raises(ValueError, match=rf"it differs in {name} \({value} then, {2 * value} now\); "):
            begin(tmp_path, describe(corpus, cooldown=0.5, **{**lengths, name: 2 * value}), resume=True)


def declared_options(kind: type) -> set[str]:
    """Names of the options of a dataclass that this package declares, not transformers."""
    bases = [base for base in kind.__mro__ if not base.__module__.startswith("transformers.")]
    return {name for base in bases for name in get_annotations(base)}


def test_every_option_of_this_package_says_what_it_decides():
    for kind in (DataArguments, ModelArguments, RecipeTrainingArguments):
        silent = [field.name for field in fields(kind) if "decides" not in field.metadata]
        assert not declared_options(kind).intersection(silent)


def test_options_that_do_not_decide_the_weights_may_change_and_those_that_are_gone_do_not_count(tmp_path, corpus):
    begin(tmp_path, describe(corpus) | {"virtual_rank_threads": 1})
    changes = dict.fromkeys(FREE, 7) | {name: ["phrasebook"] for name in ("validation", "test", "replay_test")}
    assert begin(tmp_path, describe(corpus, **changes), resume=True) is None


def test_another_corpus_is_not_resumed(tmp_path, corpus):
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    other = [corpus[0], str(tmp_path / "b.de")]
    with pytest.raises(ValueError, match=r"train \(.*/a\.en .*/a\.de then, .*/a\.en .*/b\.de now\)"):
        begin(directory, describe(other), resume=True)
    Path(corpus[1]).write_text("changed\n", encoding="utf-8")
    with pytest.raises(ValueError, match="it differs in train "):
        begin(directory, describe(corpus), resume=True)


def test_a_run_without_a_checkpoint_can_resume_or_begin_anew(tmp_path, corpus):
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    (directory / "tokenizer.json").touch()
    (directory / "_incomplete" / "checkpoint-2").mkdir(parents=True)
    assert begin(directory, describe(corpus), resume=True) is None
    assert begin(directory, describe(corpus, seed=7)) is None
    assert load_record(directory)["seed"] == 7


def test_a_run_with_results_is_neither_overwritten_nor_resumed_without_a_checkpoint(tmp_path, corpus):
    directory = tmp_path / "run"
    (directory / "checkpoint-2").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"holds no training to resume; leave out --resume"):
        begin(directory, describe(corpus), resume=True)
    with pytest.raises(ValueError, match="already holds checkpoint-2; choose another directory, or go on with"):
        begin(directory, describe(corpus))
    (directory / "checkpoint-2").rmdir()
    begin(directory, describe(corpus))
    (directory / "checkpoint-2").mkdir()
    with pytest.raises(ValueError, match=r"to start from the beginning, delete checkpoint-2$"):
        begin(directory, describe(corpus), resume=True)


def test_what_is_known_later_is_added_to_the_record_and_compared(tmp_path, corpus):
    settings = describe(corpus)
    assert "precision" not in settings  # "auto"
    begin(tmp_path, settings)
    record_settings(tmp_path, {"precision": "bf16", "vocabulary": "5"})
    assert load_record(tmp_path) == {**settings, "precision": "bf16", "vocabulary": "5"}
    record_settings(tmp_path, {"vocabulary": "5"})
    with pytest.raises(ValueError, match=r"it differs in vocabulary \(5 then, 6 now\); repeat its options"):
        record_settings(tmp_path, {"vocabulary": "6"})
    assert load_record(tmp_path)["vocabulary"] == "5"


def test_a_run_is_locked_as_long_as_it_is_open(tmp_path, corpus):
    with open_run(tmp_path / "run", describe(corpus), resume=False):
        for resume in (False, True):
            again = open_run(tmp_path / "run", describe(corpus), resume)
            with pytest.raises(ValueError, match="another process is at work"), again:
                pass
    begin(tmp_path / "run", describe(corpus), resume=True)


def test_without_locks_a_warning_says_so(tmp_path, monkeypatch, caplog):
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / "run"):
        pass
    assert "output_dir: " in caplog.text
    assert "cannot be locked; start no second command that writes there: " in caplog.text
