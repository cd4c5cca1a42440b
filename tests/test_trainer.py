"""The trainer of token-budget batches (5.1), on one process and on two."""

import copy
import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset, DatasetDict
from distributed_step import (
    DROPOUT,
    EPOCHS,
    EPSILON,
    EVAL_BATCHES,
    NUM_EVAL_ROWS,
    RESUME_FROM,
    STEPS_AN_EPOCH,
    GradientRecorder,
    assert_equal_weights,
    evaluate,
    make_model,
    make_rows,
    make_trainer,
    one_step_gradients,
    train_with_muon,
)
from helpers import run_ranks
from packaging.version import Version
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode
from transformers import DataCollatorForSeq2Seq

from vaswani_transformer import (
    CheckpointAveraging,
    VaswaniForConditionalGeneration,
    VaswaniTokenizer,
    VaswaniTrainingArguments,
    average_checkpoints,
    noam_learning_rate,
)
from vaswani_transformer.data.batching import MixedCorpus
from vaswani_transformer.training.callbacks import TimeLimit, TrainingProgress
from vaswani_transformer.training.loss import LabelSmoothedLoss
from vaswani_transformer.training.trainer import VaswaniTrainer


pytestmark = pytest.mark.system
TESTS = Path(__file__).parent


def loss_sum(model: VaswaniForConditionalGeneration, rows: list[dict[str, list[int]]], epsilon: float) -> torch.Tensor:
    """Szegedy's loss summed over the tokens of sentences, each of which goes through the model alone, unpadded."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        target = torch.tensor([[0, *row["labels"][:-1]]])
        logits = model(input_ids=torch.tensor([row["input_ids"]]), decoder_input_ids=target).logits[0]
        for scores, label in zip(logits.log_softmax(-1), row["labels"], strict=True):
            total = total - (1 - epsilon) * scores[label] - epsilon * scores.mean()
    return total


def count_labels(rows: list[dict[str, list[int]]]) -> int:
    return sum(len(row["labels"]) for row in rows)


@pytest.fixture(scope="module")
def two_processes(tokenizer: VaswaniTokenizer, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Findings of each of two processes (see distributed_step.py)."""
    folder = tmp_path_factory.mktemp("two_processes")
    make_model().save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "tokenizer")
    ranks = run_ranks([TESTS / "distributed_step.py", folder], 2)
    assert [rank.returncode for rank in ranks] == [0, 0], "".join(rank.stderr[-4000:] for rank in ranks)
    findings = [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]
    assert [found["world_size"] for found in findings] == [2, 2]
    return findings


# One step.


@pytest.fixture(scope="module")
def expected_gradients() -> dict[str, torch.Tensor]:
    """The gradients of the mean over all target tokens, by plain autograd in float64."""
    model, rows = make_model().double(), make_rows()
    (loss_sum(model, rows, EPSILON) / count_labels(rows)).backward()
    return {name: weights.grad for name, weights in model.named_parameters()}


def assert_equal_gradients(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert max(gradient.abs().max() for gradient in expected.values()) > 0.1
    torch.testing.assert_close({name: each.double() for name, each in actual.items()}, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_the_gradients_on_one_process_are_those_of_autograd(tmp_path, tokenizer, expected_gradients, accumulation):
    gradients = one_step_gradients(make_model(), tokenizer, tmp_path, accumulation)
    assert_equal_gradients(gradients, expected_gradients)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_gradients_on_two_processes_are_those_of_autograd(two_processes, expected_gradients, accumulation, rank):
    assert_equal_gradients(two_processes[rank]["gradients"][accumulation], expected_gradients)


def test_muon_on_two_processes_goes_as_on_one(tmp_path, tokenizer, two_processes):
    start, expected = make_model().state_dict(), train_with_muon(make_model(), tokenizer, tmp_path)
    first, second = (found["muon"] for found in two_processes)
    for name, weights in expected.items():
        assert first[name].equal(second[name])
        if weights.dim() == 2:  # a key's bias has gradients of rounding errors alone, which Adam scales up
            # Gradients are summed in another order, and the iterations may have the 8 bits of bfloat16.
            assert (first[name] - weights).norm() < 0.03 * (weights - start[name]).norm(), name


def test_a_compiled_step_has_the_same_gradients_by_one_graph(tmp_path, tokenizer):
    """Batches have few shapes, which a GPU captures; on a GPU a graph takes a minute to compile."""
    numbers = random.Random(1)
    lengths = [(numbers.randrange(1, 15), numbers.randrange(1, 12)) for _ in range(80)]
    rows = [
        {"input_ids": [*range(3, 3 + source), 1], "labels": [*range(5, 5 + target), 1]} for source, target in lengths
    ]

    graphs = []

    def gradients(**settings):
        found = []

        class Recorder(GradientRecorder):
            def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
                graphs.append(counters["stats"]["unique_graphs"])

            def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
                super().on_pre_optimizer_step(*args, **kwargs)
                found.append(torch.cat([gradient.flatten() for gradient in self.gradients.values()]))

        settings |= {"train_dataset": Dataset.from_list(rows), "num_train_epochs": 2, "callbacks": [Recorder()]}
        trainer = make_trainer(make_model(), tokenizer, tmp_path, **settings)
        trainer.train()
        return found, list(chain(*trainer.batches.values()))

    expected, batches = gradients()
    counters.clear()
    actual, padded_batches = gradients(torch_compile=True, torch_compile_backend="aot_eager")
    assert len(actual) > 16
    assert graphs[2:] == [1, 1]
    assert not counters["graph_break"]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    shapes, padded = (
        {(*each["input_ids"].shape, each["labels"].shape[1]) for each in of} for of in (batches, padded_batches)
    )
    assert len(padded) < len(shapes)
    assert any(each["labels"].eq(-100).all(1).any() for each in padded_batches)  # sentences that only fill a shape


def test_a_step_reads_nothing_from_its_device():
    """Tensors on "meta" have no values: reading one is an error, where on a GPU it would wait for all work before."""
    with torch.device("meta"):
        model, ids, mask = make_model(DROPOUT), torch.ones(3, 7, dtype=torch.long), torch.ones(3, 7)
        target = model.prepare_decoder_input_ids_from_labels(ids)
        outputs = model(ids, mask, target, use_cache=False)
        LabelSmoothedLoss(EPSILON)(outputs, ids.clone(), torch.tensor(21)).backward()
        assert all(weights.grad is not None for weights in model.parameters())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.optim.AdamW(model.parameters(), foreach=True).step()


# Epochs.


def test_steps_train_on_the_pairs_drawn_for_their_epoch(tokenizer, tmp_path):
    mixed = [MixedCorpus(20, 10, 4)]
    trainer = make_trainer(make_model(), tokenizer, tmp_path, mixed=mixed, num_train_epochs=3, seed=1)
    trainer.train()
    epochs = trainer.rows_by_epoch()
    for epoch, batches in epochs.items():
        trainer.batch_sampler.set_epoch(epoch)
        assert [*map(sorted, batches)] == [*map(sorted, trainer.batch_sampler)]
    rows = [sorted(chain(*batches)) for batches in epochs.values()]
    assert [len(each) for each in rows] == [24] * 3
    assert all(each[:20] == [*range(20)] for each in rows)
    assert len({tuple(each) for each in rows}) > 1


def test_two_processes_train_on_the_global_batches_of_one(tmp_path, tokenizer, two_processes):
    trainer = make_trainer(make_model(), tokenizer, tmp_path, gradient_accumulation_steps=2)
    trainer.train()
    for epoch, halves in trainer.rows_by_epoch().items():
        first, second = (found["rows"][epoch] for found in two_processes)
        assert halves == [half for halves in zip(first, second, strict=True) for half in halves]


# Resuming.


WORKERS_THAT_STAY = {
    "dataloader_num_workers": 1,
    "dataloader_persistent_workers": True,
    "dataloader_prefetch_factor": 1,
}


@pytest.mark.parametrize(
    ("step", "settings"),
    [
        (RESUME_FROM, {}),
        (RESUME_FROM, {"gradient_accumulation_steps": 2}),
        (STEPS_AN_EPOCH, {}),
        (RESUME_FROM, {"muon": True}),
        (STEPS_AN_EPOCH - 1, WORKERS_THAT_STAY),
    ],
)
def test_resuming_ends_in_the_same_weights(tmp_path, tokenizer, step, settings):
    settings = {"save_strategy": "steps", "save_steps": step, **settings}
    whole = make_trainer(make_model(dropout=0.1), tokenizer, tmp_path, **settings)
    whole.train()
    other = VaswaniForConditionalGeneration(make_model(dropout=0.1).config)
    resumed = make_trainer(other, tokenizer, tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    rows, resumed_rows = ([*chain(*trainer.rows_by_epoch().values())] for trainer in (whole, resumed))
    assert resumed_rows == rows[step * settings.get("gradient_accumulation_steps", 1) :]
    assert_equal_weights(resumed.model.state_dict(), whole.model.state_dict())


def test_resuming_ends_in_the_same_weights_on_two_processes(two_processes):
    if Version(transformers.__version__) < Version("5.23") and two_processes[0]["resumed"] is None:
        pytest.skip("this transformers cannot resume what two processes have saved on CPU")
    for found in two_processes:
        assert found["resumed"]["rows"] == {1: found["rows"][1][RESUME_FROM - STEPS_AN_EPOCH :]}
        assert_equal_weights(found["resumed"]["weights"], found["weights"])


# Dropout masks.


def agreement(first: list[torch.Tensor], second: list[torch.Tensor]) -> list[float]:
    return [(mask == other).double().mean().item() for mask, other in zip(first, second, strict=True)]


def test_ranks_draw_independent_masks(two_processes):
    """Independent masks agree where both drop or both keep; 0.02 is five standard deviations."""
    independent = pytest.approx(DROPOUT**2 + (1 - DROPOUT) ** 2, abs=0.02)
    assert agreement(*(found["masks"] for found in two_processes)) == [independent] * EPOCHS * STEPS_AN_EPOCH
    if two_processes[0]["resumed"] is None:
        pytest.skip("this transformers cannot resume what two processes have saved on CPU")
    for found in two_processes:
        assert agreement(found["resumed"]["masks"], found["masks"][RESUME_FROM:]) == [1.0, 1.0]
    first, second = (found["without_states"] for found in two_processes)
    assert agreement(first, second) == [independent] * 2, "of a checkpoint that lacks their states"
    for found in two_processes:
        assert agreement(found["without_states"][:1], found["masks"][:1]) == [independent], "the first step's"


# Logs and checkpoints.


def test_a_limit_of_time_ends_training_with_a_checkpoint(tmp_path, tokenizer, clock):
    """A step takes two seconds, so that six seconds are over with the third."""
    callbacks = [clock, TimeLimit(0.1), averaging := CheckpointAveraging(2)]
    settings = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    trainer = make_trainer(make_model(), tokenizer, tmp_path, callbacks=callbacks, **settings)
    trainer.train()
    assert trainer.state.global_step == 3
    assert [directory.name for directory in averaging.averaged] == ["checkpoint-2", "checkpoint-3"]
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [2, 3]


def test_a_training_of_minutes_says_soon_how_many_steps_and_passes_it_will_make(tmp_path, tokenizer, clock, capsys):
    """Fifteen seconds are eight steps of two seconds; the line comes after the second step."""
    trainer = make_trainer(
        make_model(), tokenizer, tmp_path, callbacks=[clock, TimeLimit(0.25), TrainingProgress(0.25)]
    )
    trainer.train()
    assert trainer.state.global_step == 8
    line = "at this speed, the training will make 8 steps, 1.5 passes over the corpus, in 0.25 min"
    assert [each for each in capsys.readouterr().out.splitlines() if "at this speed" in each] == [line]


def test_a_resumed_training_has_the_time_that_is_left(tmp_path, tokenizer, clock):
    """Ten seconds are five steps, whether or not it was interrupted after the second."""
    settings = {"save_strategy": "steps", "save_steps": 2, "callbacks": [clock, TimeLimit(1 / 6)]}
    make_trainer(make_model(), tokenizer, tmp_path, max_steps=2, **settings).train()
    clock.now += 100.0
    resumed = make_trainer(make_model(), tokenizer, tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == 5


@pytest.mark.parametrize("limit", ["steps", "time"])
def test_a_training_resumed_at_its_end_only_ends(tmp_path, tokenizer, clock, limit):
    """It ends as the first one did: same average in the model, same totals, and no step."""

    def make() -> tuple[VaswaniTrainer, CheckpointAveraging]:
        callbacks = [clock, averaging := CheckpointAveraging(2), *([TimeLimit(0.1)] if limit == "time" else [])]
        settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3 if limit == "steps" else -1}
        return make_trainer(make_model(), tokenizer, tmp_path, callbacks=callbacks, **settings), averaging

    trainer, averaging = make()
    trainer.train()
    again, averaging_again = make()
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == trainer.state.global_step == 3
    assert again.state.epoch == trainer.state.epoch
    assert averaging_again.averaged == averaging.averaged
    assert again.totals.target_tokens == trainer.totals.target_tokens
    assert again.totals.seconds == trainer.totals.seconds
    assert again.state.total_flos == trainer.state.total_flos
    assert_equal_weights(again.model.state_dict(), trainer.model.state_dict())
    again.train()  # a new training is not affected
    assert again.batches
    assert again.state.global_step == 3


def test_processes_save_and_stop_when_the_clock_of_the_first_says_so(two_processes):
    assert [found["averaged"] for found in two_processes] == [["checkpoint-8", "checkpoint-10"]] * 2
    assert_equal_weights(two_processes[1]["weights"], two_processes[0]["weights"])
    assert [found["limited"] for found in two_processes] == [3, 3]
    highest = noam_learning_rate(1, 24, warmup_steps=4)  # the warm-up was cut after the first step
    rates = [pytest.approx(highest / step**0.5) for step in (1, 2, 3)]
    assert [found["limited_rates"] for found in two_processes] == [rates, rates]


def test_logs_count_tokens_seconds_and_padding(tmp_path, tokenizer, clock):
    trainer = make_trainer(make_model(), tokenizer, tmp_path, callbacks=[clock], logging_steps=4)
    assert trainer.totals.target_tokens == 0
    clock.now += 100.0  # what happens before training does not count
    trainer.train()
    batches = list(chain(*trainer.batches.values()))
    tokens = [int(batch["labels"].ne(-100).sum()) for batch in batches]
    assert len(tokens) == EPOCHS * STEPS_AN_EPOCH == 10
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    speeds = [entry["target_tokens_per_second"] for entry in logged]
    assert speeds == pytest.approx([sum(tokens[0:4]) / 8, sum(tokens[4:8]) / 8], rel=1e-12)
    assert trainer.totals.target_tokens == sum(tokens) == EPOCHS * count_labels(make_rows()), "the last two steps, too"

    first = batches[:STEPS_AN_EPOCH]
    places = sum(batch[side].numel() for batch in first for side in ("input_ids", "labels"))
    padding = sum(int(batch["input_ids"].eq(0).sum() + batch["labels"].eq(-100).sum()) for batch in first)
    assert [entry["padding_share"] for entry in logged] == pytest.approx([padding / places] * 2, rel=1e-12)
    assert padding > 0


@pytest.mark.parametrize("restore", [False, True])
def test_a_resumed_training_counts_on(tmp_path, tokenizer, clock, restore):
    settings = {"max_steps": 7, "save_strategy": "steps", "save_steps": 3, "callbacks": [clock]}
    whole = make_trainer(make_model(), tokenizer, tmp_path, **settings)
    whole.train()
    clock.now += 500.0
    settings |= {"restore_callback_states_from_checkpoint": restore, "output_dir": tmp_path / "resumed"}
    resumed = make_trainer(make_model(), tokenizer, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.totals.target_tokens == whole.totals.target_tokens > 0
    assert resumed.totals.seconds == resumed.totals.device_seconds == whole.totals.seconds == 7 * clock.seconds
    clock.now += 500.0
    resumed.args.max_steps = 2  # from the beginning
    resumed.train()
    assert resumed.totals.seconds == 2 * clock.seconds
    assert resumed.totals.target_tokens < whole.totals.target_tokens


def test_all_ranks_end_when_the_loss_of_one_is_not_finite(two_processes):
    first, second = (found["diverged"] for found in two_processes)
    assert first == second
    assert "diverged at step 3:" in first
    assert "/checkpoint-2;" in first


def test_machines_without_a_shared_disk_have_the_same_average_and_refuse_to_resume_or_start(two_processes):
    first, second = (found["machines"] for found in two_processes)
    folder = Path(first["folder"])
    average = average_checkpoints([folder / "machine-0" / f"checkpoint-{step}" for step in (2, 4)])
    assert not [*(folder / "machine-1").glob("checkpoint-*")]
    for found in (first, second):
        assert_equal_weights({name: found["weights"][name] for name in average}, average)
        assert "holds no complete checkpoint to resume from" in found["newest"]
        assert "checkpoint-4: cannot be resumed from, is missing (on " in found["named"]
        assert " of rank 0; give one that all machines share" in found["shared"]
        assert "holds another training; it differs in seed (" in found["each"]


def test_two_processes_log_the_same_and_count_both(two_processes):
    consumed = sum(found["labels"] for found in two_processes)
    assert consumed == EPOCHS * count_labels(make_rows())
    assert [found["total_target_tokens"] for found in two_processes] == [consumed, consumed]
    steps = EPOCHS * STEPS_AN_EPOCH
    assert [found["seconds"] for found in two_processes] == [(60 * steps, 120 * steps), (3600 * steps, 7200 * steps)]
    # The first process logs, and by its clock a step takes a minute; all steps are logged.
    speeds = [entry.get("target_tokens_per_second", 0.0) for entry in two_processes[0]["logs"]]
    assert sum(speeds) * 60 == pytest.approx(consumed, rel=1e-9)
    first, second = ([entry for entry in found["logs"] if "loss" in entry] for found in two_processes)
    assert [entry["nll_loss"] for entry in first] == [entry["nll_loss"] for entry in second]
    assert all(0 < abs(entry["nll_loss"] - entry["loss"]) < 0.3 for entry in first)  # smoothing adds little
    first, second = ([entry["eval_loss"] for entry in found["logs"] if "eval_loss" in entry] for found in two_processes)
    assert len(first) == EPOCHS
    assert first == second
    assert first[1] < first[0]


# Arguments.


class TorchRows(torch.utils.data.Dataset):
    """A dataset of torch, with a field that is for no model."""

    def __init__(self, rows: list[dict[str, list[int]]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.rows[index], "text": f"sentence {index}"}


ROWS = Dataset.from_list(make_rows())
REFUSED = {
    "other args": ({"args": object()}, r"^args: must be VaswaniTrainingArguments, is object$"),
    "no tokenizer": ({"processing_class": None}, r"^processing_class: give the tokenizer, or a data_collator"),
    "stream": (
        {"train_dataset": ROWS.to_iterable_dataset()},
        r"^train_dataset: IterableDataset has no length .*; pass",
    ),
    "splits": ({"train_dataset": DatasetDict(train=ROWS)}, r"^train_dataset: DatasetDict has no length .*; pass"),
    "no rows": ({"train_dataset": []}, r"^train_dataset: must have rows .*, has 0 rows with none; tokenizer"),
    "text": ({"train_dataset": [{"text": "A"}]}, r"^train_dataset: must .* input_ids and labels, has 1 rows with text"),
}


def test_other_labels_are_refused(tmp_path, tokenizer):
    with pytest.raises(ValueError, match=r"^label_names: .* column labels, not \['targets'\]$"):
        make_trainer(make_model(), tokenizer, tmp_path, label_names=["targets"])


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_trainer_cannot_use_is_refused_by_name(tmp_path, tokenizer, case):
    changes, message = REFUSED[case]
    args = VaswaniTrainingArguments(str(tmp_path), use_cpu=True)
    arguments = {"model": make_model(), "args": args, "train_dataset": ROWS, "processing_class": tokenizer, **changes}
    with pytest.raises(ValueError, match=message) as refusal:
        VaswaniTrainer(**arguments)
    assert len(str(refusal.value).splitlines()) == 1


def test_training_without_a_dataset_is_refused(tmp_path, tokenizer):
    trainer = make_trainer(make_model(), tokenizer, tmp_path, train_dataset=None)
    with pytest.raises(ValueError, match=r"^train_dataset: there is none to train on"):
        trainer.train()


def test_a_dataset_of_torch_trains_as_one_of_datasets(tmp_path, tokenizer):
    trained = []
    for rows in (ROWS, TorchRows(make_rows()), make_rows()):
        trainer = make_trainer(make_model(), tokenizer, tmp_path, train_dataset=rows, max_steps=2)
        trainer.train()
        trained.append((trainer.rows_by_epoch(), trainer.model.state_dict()))
    for batches, weights in trained[1:]:
        assert batches == trained[0][0]
        assert_equal_weights(weights, trained[0][1])


@pytest.mark.parametrize("virtual_ranks", [None, 2])
def test_a_collator_need_not_know_the_model(tmp_path, tokenizer, virtual_ranks):
    """The stock collator makes the decoder's inputs only if it does."""
    losses, weights = [], []
    for collator in (None, DataCollatorForSeq2Seq(tokenizer)):
        trainer = make_trainer(make_model(), tokenizer, tmp_path, max_steps=2, virtual_ranks=virtual_ranks)
        trainer.data_collator = collator or trainer.data_collator
        trainer.train()
        losses.append(trainer.evaluate()["eval_loss"])
        weights.append(trainer.model.state_dict())
    assert losses[0] == losses[1]
    assert_equal_weights(weights[1], weights[0])


def test_search_options_that_cannot_be_saved_are_refused_before_the_first_step(tmp_path, tokenizer):
    model = make_model()
    model.generation_config.temperature = 0.5
    trainer = make_trainer(model, tokenizer, tmp_path, save_strategy="steps", save_steps=1)
    with pytest.raises(ValueError, match=r"^generation_config: .*`do_sample=True` or unset `temperature`") as refusal:
        trainer.train()
    assert len(str(refusal.value).splitlines()) == 1
    assert trainer.state.global_step == 0
    assert not [*tmp_path.iterdir()]


# Evaluation.


@pytest.fixture(scope="module")
def expected_evaluation() -> Any:
    """The negative log-likelihood of all rows by the number of their tokens, without label smoothing."""
    rows = make_rows()[:NUM_EVAL_ROWS]
    with torch.no_grad():
        return pytest.approx(loss_sum(make_model().double(), rows, epsilon=0.0).item() / count_labels(rows), rel=1e-6)


@pytest.mark.parametrize("size", EVAL_BATCHES)
@pytest.mark.parametrize("generate", [False, True])
def test_the_evaluation_logs_the_likelihood_of_the_corpus(tmp_path, tokenizer, expected_evaluation, size, generate):
    settings = {"predict_with_generate": generate, "generation_max_length": 4}
    assert evaluate(make_model(dropout=0.1), tokenizer, tmp_path, size, **settings) == expected_evaluation


def test_two_processes_evaluate_each_pair_once(two_processes, expected_evaluation):
    for found in two_processes:
        assert found["evaluated"] == dict.fromkeys(EVAL_BATCHES, expected_evaluation)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_training_logs_the_plain_likelihood_beside_the_smoothed_loss(tmp_path, tokenizer, accumulation):
    model, rows = make_model(), make_rows()
    untrained = copy.deepcopy(model).double().eval()
    trainer = make_trainer(model, tokenizer, tmp_path, gradient_accumulation_steps=accumulation)
    trainer.train()
    batch = [rows[index] for part in trainer.rows_by_epoch()[0][:accumulation] for index in part]
    with torch.no_grad():
        expected = loss_sum(untrained, batch, epsilon=0.0) / count_labels(batch)
    logged = [entry["nll_loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == EPOCHS * STEPS_AN_EPOCH
    assert logged[0] == pytest.approx(expected.item(), rel=1e-5)


def test_evaluating_leaves_the_weights_as_they_would_be(tmp_path, tokenizer):
    whole = make_trainer(make_model(dropout=0.1), tokenizer, tmp_path)
    whole.train()
    evaluated = make_trainer(make_model(dropout=0.1), tokenizer, tmp_path, eval_strategy="steps", eval_steps=1)
    evaluated.train()
    assert_equal_weights(evaluated.model.state_dict(), whole.model.state_dict())


# Operations.


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_operations_of_training_are_those_that_pytorch_counts(tmp_path, tokenizer, accumulation):
    model = make_model()
    model.set_attn_implementation("eager")  # PyTorch's counter does not know CPU's fused attention
    trainer = make_trainer(model, tokenizer, tmp_path, gradient_accumulation_steps=accumulation)
    with FlopCounterMode(display=False) as counter:
        trainer.train()
    assert sum(map(len, trainer.batches.values())) == EPOCHS * STEPS_AN_EPOCH * accumulation
    assert trainer.state.total_flos == counter.get_total_flops() > 0
