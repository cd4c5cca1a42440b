"""Elastic training: the same bits on one process and after restarts on others; `make trials` has more numbers."""

from itertools import chain
from pathlib import Path

import pytest
import torch
from distributed_step import GradientRecorder, make_model
from elastic_run import STEPS, STEPS_AN_EPOCH, VIRTUAL_RANKS, elastic_trainer, train_on
from helpers import run_ranks

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniTokenizer, VaswaniTrainer
from vaswani_transformer.options.training import VaswaniTrainingArguments
from vaswani_transformer.system.processes import derived_seed
from vaswani_transformer.training.elastic import VirtualRanks, VirtualRankSampler


pytestmark = pytest.mark.system
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def saved(tokenizer: VaswaniTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its tokenizer."""
    folder = tmp_path_factory.mktemp("elastic")
    make_model().save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "tokenizer")
    return folder


def assert_equal_bits(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name].view(torch.int32), tensor.view(torch.int32)), name


def comparable(logs: list[dict[str, float]]) -> list[dict[str, float]]:
    """Logged values of each step, except those that depend on the clock or the mean over processes."""
    names = ("step", "epoch", "loss", "nll_loss", "grad_norm", "learning_rate", "padding_share")
    return [{name: entry[name] for name in names} for entry in logs if "loss" in entry]


def test_a_restart_with_another_number_of_processes_changes_no_bit(saved: Path) -> None:
    train_on(saved, "alone")
    for rank in run_ranks([TESTS / "elastic_run.py", saved, "restarted", "3"], 3):
        assert rank.returncode == 0, rank.stderr[-4000:]
    stopped = [torch.load(saved / f"restarted-{rank}.pt") for rank in range(3)]
    assert [found["world_size"] for found in stopped] == [3, 3, 3]
    for found in stopped[1:]:
        assert_equal_bits(found["weights"], stopped[0]["weights"])
    train_on(saved, "restarted")  # from the checkpoint of the second step
    alone, found = (torch.load(saved / f"{name}-0.pt") for name in ("alone", "restarted"))
    assert_equal_bits(found["weights"], alone["weights"])
    assert comparable(found["logs"]) == comparable(alone["logs"])
    assert [entry["step"] for entry in comparable(found["logs"])] == list(range(1, STEPS + 1))
    assert (found["target_tokens"], found["operations"]) == (alone["target_tokens"], alone["operations"])


def pairwise(terms: list[torch.Tensor]) -> torch.Tensor:
    while len(terms) > 1:
        terms = [first + second for first, second in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0]


def test_a_step_is_the_tree_sum_of_plain_backward_passes(saved: Path, tmp_path: Path) -> None:
    recorder = GradientRecorder()
    trainer = elastic_trainer(saved, tmp_path, max_steps=1, callbacks=[recorder])
    trainer.get_train_dataloader()
    parts = [trainer.train_dataset[part] for part in list(trainer.batch_sampler)[:VIRTUAL_RANKS]]
    trainer.train()

    model = VaswaniForConditionalGeneration.from_pretrained(saved / "model", dropout=0.1).train()
    rows = [[{"input_ids": i, "labels": o} for i, o in zip(*part.values(), strict=True)] for part in parts]
    tokens = sum(len(labels) for part in parts for labels in part["labels"])
    gradients = []
    for virtual_rank, batch in enumerate(rows):
        torch.manual_seed(derived_seed(trainer.args.seed, 0, virtual_rank))
        inputs = trainer.data_collator(batch)
        labels = inputs.pop("labels")
        model.zero_grad()
        trainer.compute_loss_func(model(**inputs), labels, tokens).backward()
        gradients.append({name: weights.grad.clone() for name, weights in model.named_parameters()})
    expected = {name: pairwise([part[name] for part in gradients]) for name in gradients[0]}
    assert_equal_bits(recorder.gradients, expected)
    in_turn = {name: sum(part[name] for part in gradients) for name in gradients[0]}
    assert any(not torch.equal(in_turn[name], expected[name]) for name in expected), "else the order is not tested"


def test_masks_differ_between_virtual_ranks_and_steps(saved: Path, tmp_path: Path) -> None:
    states = []
    trainer = elastic_trainer(saved, tmp_path, max_steps=2, save_strategy="no")
    trainer.model.model.encoder.register_forward_pre_hook(
        lambda *_: states.append(tuple(torch.get_rng_state().tolist()))
    )
    trainer.train()
    assert len(set(states)) == len(states) == 2 * VIRTUAL_RANKS


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 8, 13])
def test_every_virtual_rank_lies_on_one_process(count: int) -> None:
    for processes in range(1, count + 1):
        ranks = VirtualRanks(count, processes)
        blocks = [list(ranks.block(process)) for process in range(processes)]
        assert list(chain.from_iterable(blocks)) == list(range(count))
        sizes = [len(block) for block in blocks]
        assert max(sizes) - min(sizes) <= 1
        for process, block in enumerate(blocks):
            assert [ranks.owner(virtual_rank) for virtual_rank in block] == [process] * len(block)


@pytest.mark.parametrize(("count", "formula"), [(1, "0"), (3, "((0+1)+2)"), (6, "(((0+1)+(2+3))+(4+5))")])
def test_the_tree_depends_on_the_number_of_virtual_ranks_alone(count: int, formula: str) -> None:
    values = torch.randn(count, 1000) * 10 ** torch.arange(count)[:, None]
    (total,) = VirtualRanks(count).tree_sum(lambda virtual_rank: [values[virtual_rank].clone()])
    names = {str(number): f"values[{number}]" for number in range(count)}
    expected = eval("".join(names.get(character, character) for character in formula))
    assert torch.equal(total, expected)


def test_steps_and_epochs_do_not_depend_on_the_number_of_processes(saved: Path, tmp_path: Path) -> None:
    trainer = elastic_trainer(saved, tmp_path)
    loader = trainer.get_train_dataloader()
    assert len(loader) == STEPS_AN_EPOCH
    whole = list(trainer.batch_sampler)
    for processes in (1, 2, 3, 5, 8):
        sampler = VirtualRankSampler(trainer.batch_sampler, VirtualRanks(VIRTUAL_RANKS, processes))
        items = list(sampler)
        assert len(items) == len(sampler) == STEPS_AN_EPOCH * processes
        assert list(chain.from_iterable(items)) == whole


def test_what_does_not_go_with_elastic_training_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^gradient_accumulation_steps: must be 1 in elastic training, is 2; "):
        VaswaniTrainingArguments(str(tmp_path), use_cpu=True, virtual_ranks=8, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match=r"^virtual_ranks: 8 virtual ranks cannot occupy 9 processes"):
        VirtualRanks(8, 9)
    with pytest.raises(ValueError, match=r"^average_tokens_across_devices: "):
        VaswaniTrainingArguments(str(tmp_path), use_cpu=True, average_tokens_across_devices=False)
    elastic = elastic_trainer(saved, tmp_path)
    with pytest.raises(ValueError, match=r"^virtual_ranks: .*ElasticTrainer"):
        VaswaniTrainer(
            elastic.model, elastic.args, train_dataset=elastic.train_dataset, processing_class=elastic.processing_class
        )
