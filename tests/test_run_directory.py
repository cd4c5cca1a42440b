"""The output directory of a training: lock, record, and what it refuses."""

import errno
import fcntl
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data.preparation_arguments import PreparationArguments
from vaswani_transformer.data.training_data import TrainingData
from vaswani_transformer.io.files import Json
from vaswani_transformer.runs.run_directory import check_data, describe_settings, locked, open_run


MODEL: dict[str, Json] = {"d_model": 16, "dropout": 0.1}
TRAINING = {
    "source_tokens": 400,
    "target_tokens": 400,
    "batch_window": 4,
    "seed": 42,
    "data_seed": None,
    "warmup_steps": 4000.0,
    "learning_rate_factor": 1.0,
    "constant_learning_rate": None,
    "optim": "adamw_torch",
    "optim_args": None,
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_epsilon": 1e-9,
    "weight_decay": 0.0,
    "max_grad_norm": 0.0,
    "neftune_noise_alpha": None,
    "bf16": False,
    "fp16": False,
    "virtual_ranks": None,
    "virtual_rank_threads": 1,
    "torch_compile": False,
}
# What may change when a training is resumed.
FREE = {
    "max_steps": 100,
    "num_train_epochs": 3.0,
    "max_minutes": None,
    "gradient_accumulation_steps": 1,
    "average_last": 5,
    "logging_steps": 500,
    "eval_steps": None,
    "save_steps": 500,
    "push_to_hub": False,
}


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    for name in ("a.en", "a.de", "b.de"):
        (tmp_path / name).write_text(f"{name}\n", encoding="utf-8")
    return [str(tmp_path / "a.en"), str(tmp_path / "a.de")]


def describe(corpus: list[str], **changes: Any) -> Any:
    """A function that describes a training, some of whose settings are changed."""
    data = {"train": corpus, **{name: value for name, value in changes.items() if name in vars(PreparationArguments())}}
    model = {name: changes.get(name, value) for name, value in MODEL.items()}
    args: Any = SimpleNamespace(**{name: changes.get(name, value) for name, value in (TRAINING | FREE).items()})
    return lambda known: describe_settings(PreparationArguments(**data), model, args, known)


def begin(directory: Path, description: Any, resume: bool = False) -> Path | None:
    with open_run(directory, description, resume) as checkpoint:
        return checkpoint


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"source_language": "fr"}, "source_language (en then, fr now)"),
        ({"target_language": "fr"}, "target_language (de then, fr now)"),
        ({"columns": ["1", "2"]}, "columns (None then, 1 2 now)"),
        ({"dataset_config": "de-en"}, "dataset_config (None then, de-en now)"),
        ({"max_length": 100}, "max_length (256 then, 100 now)"),
        ({"replay": ["phrasebook"]}, "replay (None then, phrasebook now)"),
        ({"synthetic": ["phrasebook"]}, "synthetic (None then, phrasebook now)"),
        ({"max_ratio": 2.0}, "max_ratio (5.0 then, 2.0 now)"),
        ({"tokenizer_model": "wordpiece"}, "tokenizer_model (bpe then, wordpiece now)"),
        ({"tokenizer_sample": 9}, "tokenizer_sample (1000000 then, 9 now)"),
        ({"vocab_size": 500}, "vocab_size (37000 then, 500 now)"),
        ({"tokenizer": "somewhere"}, "tokenizer (None then, somewhere now)"),
        ({"d_model": 32}, "d_model (16 then, 32 now)"),
        ({"source_tokens": 300}, "source_tokens (400 then, 300 now)"),
        ({"target_tokens": 300}, "target_tokens (400 then, 300 now)"),
        ({"batch_window": 1}, "batch_window (4 then, 1 now)"),
        ({"seed": 7}, "seed (42 then, 7 now)"),
        ({"data_seed": 7}, "data_seed (None then, 7 now)"),
        ({"warmup_steps": 9.0}, "warmup_steps (4000.0 then, 9.0 now)"),
        ({"learning_rate_factor": 2.0}, "learning_rate_factor (1.0 then, 2.0 now)"),
        ({"optim": "sgd"}, "optim (adamw_torch then, sgd now)"),
        ({"optim_args": "a=1"}, "optim_args (None then, a=1 now)"),
        ({"adam_beta1": 0.8}, "adam_beta1 (0.9 then, 0.8 now)"),
        ({"adam_beta2": 0.8}, "adam_beta2 (0.98 then, 0.8 now)"),
        ({"adam_epsilon": 0.1}, "adam_epsilon (1e-09 then, 0.1 now)"),
        ({"weight_decay": 0.1}, "weight_decay (0.0 then, 0.1 now)"),
        ({"max_grad_norm": 0.1}, "max_grad_norm (0.0 then, 0.1 now)"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha (None then, 5.0 now)"),
        ({"constant_learning_rate": 1e-4}, "constant_learning_rate (None then, 0.0001 now)"),
        ({"bf16": True}, "bf16 (False then, True now)"),
        ({"fp16": True}, "fp16 (False then, True now)"),
        ({"virtual_ranks": 8}, "virtual_ranks (None then, 8 now)"),
        ({"virtual_rank_threads": 2}, "virtual_rank_threads (1 then, 2 now)"),
        ({"torch_compile": True}, "torch_compile (False then, True now)"),
    ],
)
def test_another_training_is_not_resumed(
    tmp_path: Path, corpus: list[str], changes: dict[str, Any], difference: str
) -> None:
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    before = (directory / "_run.json").read_bytes()
    with pytest.raises(ValueError, match="holds another training") as refused:
        begin(directory, describe(corpus, **changes), resume=True)
    assert f"it differs in {difference}; " in str(refused.value)
    assert (directory / "_run.json").read_bytes() == before
    assert begin(directory, describe(corpus), resume=True) is None


@pytest.mark.parametrize("unknown", ["batch_window", "d_model", "all"])
def test_a_training_of_another_version_is_not_resumed(tmp_path: Path, corpus: list[str], unknown: str) -> None:
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    record = json.loads((directory / "_run.json").read_text(encoding="utf-8"))
    record["settings"] = {name: value for name, value in record["settings"].items() if unknown not in (name, "all")}
    (directory / "_run.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ValueError, match=r"begun by another version of the package; choose another directory$"):
        begin(directory, describe(corpus, seed=7), resume=True)


@pytest.mark.parametrize("name", ["replay", "replay_ratio", "synthetic", "synthetic_ratio", "constant_learning_rate"])
def test_a_training_begun_before_there_was_an_option_is_resumed(tmp_path: Path, corpus: list[str], name: str) -> None:
    begin(tmp_path, describe(corpus))
    record = json.loads((tmp_path / "_run.json").read_text(encoding="utf-8"))
    del record["settings"][name]
    (tmp_path / "_run.json").write_text(json.dumps(record), encoding="utf-8")
    assert begin(tmp_path, describe(corpus), resume=True) is None


def test_a_training_begun_before_columns_could_be_named_is_resumed(tmp_path: Path, corpus: list[str]) -> None:
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    record = json.loads((directory / "_run.json").read_text(encoding="utf-8"))
    del record["settings"]["columns"]
    (directory / "_run.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ValueError, match=r"it differs in columns \(None then, 1 2 now\); "):
        begin(directory, describe(corpus, columns=["1", "2"]), resume=True)
    assert begin(directory, describe(corpus), resume=True) is None


@pytest.mark.parametrize("name", [*FREE, "validation", "test", "replay_test"])
def test_what_the_help_says_may_change(tmp_path: Path, corpus: list[str], name: str) -> None:
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    assert begin(directory, describe(corpus, **{name: ["phrasebook"] if name not in FREE else 7}), resume=True) is None


def test_another_corpus_is_not_resumed(tmp_path: Path, corpus: list[str]) -> None:
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    other = [corpus[0], str(tmp_path / "b.de")]
    with pytest.raises(ValueError, match=r"train \(.*/a\.en .*/a\.de then, .*/a\.en .*/b\.de now\)"):
        begin(directory, describe(other), resume=True)
    Path(corpus[1]).write_text("changed\n", encoding="utf-8")
    with pytest.raises(ValueError, match="it differs in train "):
        begin(directory, describe(corpus), resume=True)


def test_a_corpus_that_was_moved_is_the_same(tmp_path: Path, corpus: list[str]) -> None:
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    moved = [str(Path(name).rename(tmp_path / f"moved{Path(name).suffix}")) for name in corpus]
    begin(directory, describe(moved), resume=True)


def test_what_was_begun_without_a_checkpoint_can_begin_anew_and_be_resumed(tmp_path: Path, corpus: list[str]) -> None:
    directory = tmp_path / "run"
    begin(directory, describe(corpus))
    (directory / "tokenizer.json").touch()
    (directory / "_incomplete" / "checkpoint-2").mkdir(parents=True)
    assert begin(directory, describe(corpus), resume=True) is None
    assert begin(directory, describe(corpus, seed=7)) is None
    assert json.loads((directory / "_run.json").read_text(encoding="utf-8"))["settings"]["seed"] == 7


def test_checkpoints_without_a_record_or_undamaged_ones_are_not_resumed(tmp_path: Path, corpus: list[str]) -> None:
    directory = tmp_path / "run"
    (directory / "checkpoint-2").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"has checkpoints, but no _run\.json, which says what training"):
        begin(directory, describe(corpus), resume=True)
    (directory / "checkpoint-2").rmdir()
    begin(directory, describe(corpus))
    (directory / "checkpoint-2").mkdir()
    with pytest.raises(ValueError, match=r"to start from the beginning, delete .*/checkpoint-2$"):
        begin(directory, describe(corpus), resume=True)
    with pytest.raises(ValueError, match="already holds a run; choose another, or go on with --resume"):
        begin(directory, describe(corpus))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"other": 1}', '{"settings": 5}'])
@pytest.mark.parametrize("resume", [False, True])
def test_a_damaged_record_is_refused(tmp_path: Path, corpus: list[str], content: str, resume: bool) -> None:
    (tmp_path / "_run.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"_run\.json.*: .*; choose another output_dir$"):
        begin(tmp_path, describe(corpus), resume)


def test_other_sentences_or_another_vocabulary_are_not_trained_on(
    tmp_path: Path, corpus: list[str], tokenizer: VaswaniTokenizer
) -> None:
    def data(rows: int, tokenizer: Any = tokenizer) -> TrainingData:
        columns = {name: list(range(rows)) for name in ("source_length", "target_length")}
        return TrainingData(tokenizer, Dataset.from_dict(columns), {}, {}, {})

    begin(tmp_path, describe(corpus))
    args = SimpleNamespace(source_tokens=25000, target_tokens=25000)
    check_data(tmp_path, data(5), args)
    check_data(tmp_path, data(5), args)
    with pytest.raises(ValueError, match=r"differs in training pairs \(5 then, 6 now\), lengths of the training pairs"):
        check_data(tmp_path, data(6), args)
    other = VaswaniTokenizer.train(["some other text"] * 9, vocab_size=259, show_progress=False)
    with pytest.raises(ValueError, match="it differs in vocabulary "):
        check_data(tmp_path, data(5, other), args)
    tokenizer(["a", "b c d e"], padding=True)  # leaves its state in the tokenizer
    args.source_tokens = 99
    with pytest.raises(ValueError, match=r"it differs in source_tokens \(25000 then, 99 now\)"):
        check_data(tmp_path, data(5), args)
    args.source_tokens = 25000
    check_data(tmp_path, data(5), args)


# The lock.


def test_the_lock_excludes_a_second_training_until_the_first_has_ended(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        with pytest.raises(ValueError, match="another training is at work"), locked(tmp_path / "run"):
            pass
        with locked(tmp_path / "other"):
            pass
    with locked(tmp_path / "run"):
        pass


def test_a_run_is_locked_as_long_as_it_is_open(tmp_path: Path, corpus: list[str]) -> None:
    with open_run(tmp_path / "run", describe(corpus), resume=False):
        for resume in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("vaswani_transformer.runs.run_directory._PATIENCE", 0.2)
                with pytest.raises(ValueError, match="another training is at work"):
                    begin(tmp_path / "run", describe(corpus), resume)
    begin(tmp_path / "run", describe(corpus), resume=True)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with locked(tmp_path):
            os.write(writer, b"held")
            signal.pause()
    assert os.read(reader, 4) == b"held"
    with pytest.raises(ValueError, match="another training is at work"), locked(tmp_path):
        pass
    os.kill(child, signal.SIGKILL)
    with locked(tmp_path, patience=60):  # as a training that is resumed waits
        pass
    os.waitpid(child, 0)


def test_without_locks_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        pass
    assert "cannot be locked; start no second command that writes there: Function not implemented" in caplog.text
