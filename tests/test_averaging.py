"""The average of the last checkpoints (6.1), against numpy, in the Trainer of transformers."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import call_recipe, change_json
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, Seq2SeqTrainer

from vaswani_transformer import (
    CheckpointAveraging,
    NoamSchedule,
    VaswaniForConditionalGeneration,
    average_checkpoints,
)
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.system.manifests import Manifest
from vaswani_transformer.training.averaging import checkpoints_to_average


def mean_on_disk(directories: Sequence[Path]) -> dict[str, np.ndarray]:
    """numpy's mean of the tensors in `model.safetensors`, in float64."""
    weights = [load_file(directory / "model.safetensors") for directory in directories]
    return {name: np.mean([each[name].double().numpy() for each in weights], axis=0) for name in weights[0]}


def assert_equal_mean(average: dict[str, torch.Tensor], expected: dict[str, np.ndarray]) -> None:
    assert average.keys() == expected.keys()
    for name, tensor in average.items():
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), expected[name].astype(np.float32))


def assert_holds(model: PreTrainedModel, expected: dict[str, np.ndarray]) -> None:
    state = model.state_dict()
    for name, value in expected.items():
        np.testing.assert_allclose(state[name].double().numpy(), value, rtol=1e-7, atol=1e-30, err_msg=name)


# The function.


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    """Three checkpoints in as many precisions, of tensors of very different size."""
    directories = [tmp_path / name for name in ("one", "two", "three")]
    for directory, dtype in zip(directories, (torch.float32, torch.bfloat16, torch.float16), strict=True):
        directory.mkdir()
        tensors = {"a": torch.randn(3, 4), "b.c": torch.randn(5) * 1000, "scalar": torch.randn(())}
        save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directories


@pytest.mark.parametrize("count", [1, 3])
def test_the_average_is_the_mean_of_numpy_in_float32(directories, count):
    assert_equal_mean(average_checkpoints(map(str, directories[:count])), mean_on_disk(directories[:count]))


def test_the_average_is_summed_in_float64(tmp_path):
    values = [2.0**24, 1.0, 1.0, -(2.0**24)]  # float32 loses the ones
    for n, value in enumerate(values):
        (tmp_path / str(n)).mkdir()
        save_file({"a": torch.tensor([value])}, tmp_path / str(n) / "model.safetensors")
    assert average_checkpoints(tmp_path / str(n) for n in range(4))["a"].item() == 0.5


def test_sharded_checkpoints_have_the_mean_of_whole_ones(tmp_path, config):
    for name in ("one", "two"):
        model = VaswaniForConditionalGeneration(config)
        model.save_pretrained(tmp_path / name)
        model.save_pretrained(tmp_path / f"{name}-sharded", max_shard_size="10KB")
    assert len(list((tmp_path / "one-sharded").glob("*.safetensors"))) > 2
    average = average_checkpoints([tmp_path / "one-sharded", tmp_path / "two-sharded"])
    assert_equal_mean(average, mean_on_disk([tmp_path / "one", tmp_path / "two"]))


def test_the_adapters_of_peft_have_their_mean(directories, tmp_path):
    expected = mean_on_disk(directories)
    for directory in directories:
        (directory / "model.safetensors").rename(directory / "adapter_model.safetensors")
    assert_equal_mean(average_checkpoints(directories), expected)
    (tmp_path / "one" / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"/one: has no model.safetensors, and no adapter_model.safetensors$"):
        average_checkpoints(directories)


def test_no_checkpoints_have_no_average():
    with pytest.raises(ValueError, match=r"^directories: there are no checkpoints"):
        average_checkpoints([])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": torch.zeros(1), "b": torch.zeros(2)}, "differs from .+one in the name or shape of a$"),
        ({"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2)}, "differs from .+one in .* shape of c$"),
        ({"a": torch.zeros(2), "b": torch.tensor([0.0, float("nan")])}, "b is not finite"),
        (None, "cannot be averaged: "),
    ],
)
def test_checkpoints_that_have_no_mean_are_refused_by_name(tmp_path, tensors, message):
    good = {"a": torch.zeros(2), "b": torch.zeros(2)}
    for name, content in (("one", good), ("two", tensors or good)):
        (tmp_path / name).mkdir()
        save_file(content, tmp_path / name / "model.safetensors")
    if tensors is None:
        (tmp_path / "two" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises((ValueError, OSError), match=f"/two.*: {message}"):
        average_checkpoints([tmp_path / "one", tmp_path / "two"])


# The callback.


@pytest.fixture
def make_trainer(stock_trainer: Callable[..., Seq2SeqTrainer]) -> Callable[..., Seq2SeqTrainer]:
    """Makes a trainer of six steps that saves at each, unless told otherwise."""
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1}
    return lambda model, *callbacks, **overrides: stock_trainer(
        model, NoamSchedule(3), *callbacks, **{**settings, **overrides}
    )


def checkpoints(output_dir: Path, *steps: int) -> list[Path]:
    return [output_dir / f"checkpoint-{step}" for step in steps]


@pytest.mark.system
@pytest.mark.parametrize("last", [1, 3, 20])
def test_training_leaves_the_mean_of_the_last_checkpoints(tmp_path, tiny, make_trainer, last):
    averaging = CheckpointAveraging(last)
    trainer = make_trainer(tiny, averaging)
    trainer.train()
    assert averaging.averaged == checkpoints(tmp_path, *range(1, 7))[-last:]
    expected = mean_on_disk(averaging.averaged)
    assert_holds(trainer.model, expected)
    embeddings = trainer.model.get_input_embeddings().weight
    assert trainer.model.lm_head.weight is embeddings, "the softmax is tied"
    assert trainer.model.model.decoder.embed_tokens.weight is embeddings
    trainer.save_model(tmp_path / "final")
    assert_holds(VaswaniForConditionalGeneration.from_pretrained(tmp_path / "final"), expected)


@pytest.mark.system
@pytest.mark.parametrize(
    ("every_minutes", "strategy", "saved"),
    [
        (2, {"save_strategy": "no"}, [2, 4, 6, 7]),
        (100, {"save_strategy": "no"}, [7]),
        (2, {"save_steps": 3}, [2, 3, 5, 6, 7]),  # the minutes count from any save
    ],
)
def test_checkpoints_are_saved_every_so_many_minutes_and_at_the_end(
    tmp_path, tiny, make_trainer, clock, every_minutes, strategy, saved
):
    clock.seconds = 60.0
    averaging = CheckpointAveraging(2, every_minutes)
    make_trainer(tiny, clock, averaging, max_steps=7, **strategy).train()
    assert sorted(tmp_path.glob("checkpoint-*")) == checkpoints(tmp_path, *saved)
    assert averaging.averaged == checkpoints(tmp_path, *saved)[-2:]
    assert_holds(tiny, mean_on_disk(averaging.averaged))


@pytest.mark.system
def test_resuming_goes_on_from_the_checkpoint_and_not_from_the_average(tmp_path, config, tiny, make_trainer):
    make_trainer(tiny, CheckpointAveraging(3), max_steps=4).train()
    assert (tiny.lm_head.weight != load_file(tmp_path / "checkpoint-4/model.safetensors")["model.shared.weight"]).any()

    resumed, averaging = VaswaniForConditionalGeneration(config), CheckpointAveraging(3)
    make_trainer(resumed, averaging).train(resume_from_checkpoint=True)
    assert averaging.averaged == checkpoints(tmp_path, 4, 5, 6), "the first was written before the interruption"
    assert_holds(resumed, mean_on_disk(averaging.averaged))


@pytest.mark.system
def test_later_checkpoints_than_the_one_resumed_from_do_not_count(tmp_path, config, tiny, make_trainer, clock):
    make_trainer(tiny, CheckpointAveraging(2)).train()
    clock.seconds = 60.0
    averaging = CheckpointAveraging(5, every_minutes=2)
    again = VaswaniForConditionalGeneration(config)
    trainer = make_trainer(again, averaging, clock, save_strategy="no", max_steps=7)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert averaging.averaged == checkpoints(tmp_path, 1, 2, 4, 6, 7)  # 3 and 5 are the earlier run's
    assert [*checkpoints_to_average(tmp_path).values()] == averaging.averaged
    assert_holds(again, mean_on_disk(averaging.averaged))


@pytest.mark.system
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1}, r"^load_best_model_at_end: "),
        ({"save_strategy": "no"}, r"^save_strategy: there will be no"),
        ({"save_total_limit": 2}, r"^save_total_limit: must be at least 3"),
        ({}, r"^model: adapters of add_adapter cannot be averaged"),
    ],
)
def test_what_defeats_averaging_is_refused_before_training(tiny, make_trainer, settings, message):
    if not settings:
        tiny.peft_config = {}  # as `add_adapter` of transformers leaves it
    trainer = make_trainer(tiny, CheckpointAveraging(3), **settings)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.fixture
def run_with_checkpoints(saved_model, tmp_path):
    """A run with three checkpoints, whose weights are once, twice and five times those of a model."""
    for step, factor in ((8, 1.0), (9, 2.0), (10, 5.0)):
        directory = tmp_path / "run" / f"checkpoint-{step}"
        shutil.copytree(saved_model, directory)
        (directory / "manifest.json").unlink(missing_ok=True)
        weights = {name: tensor * factor for name, tensor in load_file(directory / "model.safetensors").items()}
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        measured = {"confidence_curve": [[-1.0, 20.0], [0.0, 60.0]], "alignment_heads": [[0, 0]]}
        change_json(directory / "config.json", use_cache=False, **measured)
    return tmp_path / "run"


@pytest.mark.parametrize(("options", "factor"), [(("--last", 2), 3.5), (("--last", 1), 5.0), ((8, 9), 1.5)])
def test_a_command_averages_checkpoints_into_a_model(options, factor, run_with_checkpoints, saved_model, tmp_path):
    where = ("--run", run_with_checkpoints, *options)
    if options[0] == 8:
        where = ("--checkpoints", *(run_with_checkpoints / f"checkpoint-{step}" for step in options))
    call_recipe("average.py", *where, "--output", tmp_path / "average")
    found, before = (load_file(each / "model.safetensors") for each in (tmp_path / "average", saved_model))
    assert found.keys() == before.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(found[name], tensor * factor)
    saved = open_model(tmp_path / "average")
    assert saved.config.use_cache
    assert saved.config.confidence_curve is saved.config.alignment_heads is None  # of the weights that were averaged
    assert saved.tokenizer("The man").input_ids == open_model(saved_model).tokenizer("The man").input_ids


def test_too_few_checkpoints_are_refused(run_with_checkpoints, tmp_path):
    with pytest.raises(SystemExit, match=r"run, last: .*run has 3 checkpoints"):
        call_recipe("average.py", "--run", run_with_checkpoints, "--last", 4, "--output", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_damaged_checkpoint_is_named_with_a_way_around_it(run_with_checkpoints, tmp_path):
    Manifest({"model.safetensors": (1, "")}).save(run_with_checkpoints / "checkpoint-9")
    with pytest.raises(SystemExit, match=r"^average.py: run, .*/checkpoint-9: .*; name the others by --checkpoints$"):
        call_recipe("average.py", "--run", run_with_checkpoints, "--last", 2, "--output", tmp_path / "new")
