"""Parts of a batch against all divisions there are, and epochs of 8 and 64 ranks."""

from collections.abc import Callable, Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch.distributed as dist
from accelerate.data_loader import BatchSamplerShard
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTrainer, VaswaniTrainingArguments
from vaswani_transformer.data.batching import TokenBudgetBatchSampler, divide_batches


PROPERTY = settings(deadline=None, database=None)
BATCH = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=4, max_size=9)


def cost(part: list[tuple[int, int]]) -> int:
    """A target token takes about twice the time of a source token."""
    return len(part) * (max(source for source, _ in part) + 2 * max(target for _, target in part))


def smallest_maximum(batch: list[tuple[int, int]], parts: int) -> int:
    """The largest cost of a part in the best of all divisions into consecutive parts."""
    divisions = ([0, *cuts, len(batch)] for cuts in combinations(range(1, len(batch)), parts - 1))
    return min(max(cost(batch[first:end]) for first, end in pairwise(division)) for division in divisions)


def divided(batches: list[list[tuple[int, int]]], parts: int) -> list[list[list[tuple[int, int]]]]:
    pairs = [pair for batch in batches for pair in batch]
    starts = np.cumsum([0, *map(len, batches)])
    source, target = np.array(pairs, dtype=np.int32).T
    cuts = divide_batches(starts, source, target, parts).tolist()
    assert cuts[::parts] == starts.tolist()
    found = [pairs[first:end] for first, end in pairwise(cuts)]
    return [found[first : first + parts] for first in range(0, len(found), parts)]


@PROPERTY
@given(st.lists(BATCH, min_size=1, max_size=4), st.integers(1, 4))
@example([[(1, 1)] * 4 + [(9, 9)]], 4)
@example([[(9, 1), (1, 1), (1, 1), (1, 9)]], 2)
def test_the_costliest_part_is_as_cheap_as_in_any_division(batches, parts):
    batches = [sorted(batch, key=lambda pair: pair[::-1]) for batch in batches]
    for batch, its in zip(batches, divided(batches, parts), strict=True):
        assert all(its)
        assert max(map(cost, its)) == smallest_maximum(batch, parts)


@pytest.fixture(scope="module")
def lengths() -> np.ndarray:
    """`[2, pairs]` lengths of sentence pairs as corpora have them: few are long, and translations of like length."""
    numbers = np.random.default_rng(0)
    source = numbers.lognormal(3.0, 0.6, size=20_000).clip(2, 128)
    target = (source * numbers.lognormal(0.05, 0.2, size=20_000)).clip(2, 128)
    return np.stack([source, target]).astype(np.int32)


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Makes this process one of many ranks, whose collective operations return at once."""

    def end() -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    def begin(rank: int, ranks: int) -> None:
        end()
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank % 8,
            "WORLD_SIZE": ranks,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": 1,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)

    yield begin
    end()


@pytest.mark.parametrize(("ranks", "accumulation", "budget"), [(8, 1, 25_000), (8, 4, 100_000), (64, 1, 200_000)])
def test_ranks_make_the_same_steps_on_all_pairs_and_none_waits_long(
    as_rank, lengths, tokenizer, tmp_path, ranks, accumulation, budget
):
    """Dry runs: the trainer on the first, a middle and the last rank, and what accelerate deals to all."""
    sampler = TokenBudgetBatchSampler(*lengths, budget, budget, num_parts=ranks * accumulation)
    parts = list(sampler)
    dealt = [list(BatchSamplerShard(parts, ranks, rank)) for rank in range(ranks)]
    columns = {"source_length": lengths[0], "target_length": lengths[1], "input_ids": lengths[0], "labels": lengths[1]}
    rows = Dataset.from_dict(columns)
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=37, d_model=8, d_ff=8, num_heads=2))
    budgets = {"source_tokens": budget, "target_tokens": budget, "gradient_accumulation_steps": accumulation}
    for rank in (0, ranks // 3, ranks - 1):
        as_rank(rank, ranks)
        arguments = VaswaniTrainingArguments(tmp_path, seed=0, use_cpu=True, report_to="none", **budgets)
        trainer = VaswaniTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
        assert (arguments.world_size, arguments.process_index) == (ranks, rank)
        assert list(trainer.get_train_dataloader().batch_sampler) == dealt[rank]
    assert {len(rank) for rank in dealt} == {len(sampler) // ranks}
    seen = np.bincount(np.concatenate([index for rank in dealt for index in rank]), minlength=lengths.shape[1])
    assert (seen == 1).all()
    # Before each update all wait for the slowest.
    costs = [[len(part) * (lengths[:, part].max(1) @ (1, 2)) for part in rank] for rank in dealt]
    updates = np.array(costs).reshape(ranks, -1, accumulation).sum(-1)  # [ranks, updates]
    assert updates.max(0).sum() <= 1.03 * updates.mean(0).sum()
