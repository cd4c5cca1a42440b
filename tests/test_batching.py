from collections import Counter
from fractions import Fraction
from itertools import chain, pairwise

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from vaswani_transformer.data.batching import TokenBudgetBatchSampler, plan_batches


PROPERTY = settings(deadline=None, database=None)
MANY = (1, 2, 8, 6)  # 6: three processes of two accumulation steps each
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=60)
# Long enough corpora, and budgets of at least 16 of the longest sentences, can be divided by any of MANY.
DIVISIBLE = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=16, max_size=150)
BUDGET = st.integers(16 * 9, 30 * 9)


def fits(batch: list[int], source: list[int], target: list[int], budgets: tuple[int, int]) -> bool:
    longest = max(source[index] for index in batch), max(target[index] for index in batch)
    return all(len(batch) * length <= budget for length, budget in zip(longest, budgets, strict=True))


def planned_slowly(
    source: list[int], target: list[int], budgets: tuple[int, int], window: int
) -> list[list[list[int]]]:
    """Windows of equal batches, from the largest pairs on; too few for a full batch of its own join the last window."""
    sizes = [max(Fraction(s, budgets[0]), Fraction(t, budgets[1])) for s, t in zip(source, target, strict=True)]
    left = sorted(range(len(source)), key=lambda index: (-sizes[index], -target[index], -source[index]))
    windows = []
    while left:
        count = 1
        while fits([left[0]] * (count + 1), source, target, budgets):
            count += 1
        taken = count * window if len(left) >= count * (window + 1) else len(left)
        windows.append([batch.tolist() for batch in np.array_split(left[:taken], -(-taken // count))])
        left = left[taken:]
    return windows


def sampler(lengths: list[tuple[int, int]], *budgets: int, **kwargs) -> TokenBudgetBatchSampler:
    source, target = zip(*lengths, strict=True)
    return TokenBudgetBatchSampler(source, target, *budgets, **kwargs)


def global_batches(sampler: TokenBudgetBatchSampler) -> list[list[int]]:
    parts = list(sampler)
    count = sampler.num_parts
    return [list(chain(*parts[first : first + count])) for first in range(0, len(parts), count)]


def padded_size(batch: list[int], lengths: list[tuple[int, int]]) -> int:
    source, target = zip(*(lengths[index] for index in batch), strict=True)
    return len(batch) * (max(source) + max(target))


def memory(batch: list[int], lengths: list[tuple[int, int]]) -> int:
    """In units of what a source token needs; a target token, with its logits, needs about three times as much."""
    source, target = zip(*(lengths[index] for index in batch), strict=True)
    return len(batch) * (max(source) + 3 * max(target))


def random_lengths(count: int, longest: int, seed: int = 0) -> list[tuple[int, int]]:
    lengths = np.random.default_rng(seed).integers(1, longest + 1, size=(count, 2))
    return [tuple(pair) for pair in lengths.tolist()]


@PROPERTY
@given(LENGTHS, st.integers(9, 60), st.integers(9, 60), st.integers(1, 5))
@example([(1, 1)] * 8 + [(5, 5)], 10, 10, 1)  # fewer short sentences than fill a batch
@example([(9, 1)] * 3 + [(1, 2)] * 9, 20, 40, 2)  # the longest sources are not with the longest targets
def test_a_plan_is_that_of_the_greedy_loop(lengths, source_tokens, target_tokens, window):
    source, target = (list(side) for side in zip(*lengths, strict=True))
    plan = plan_batches(source, target, source_tokens, target_tokens, window)
    slowly = planned_slowly(source, target, (source_tokens, target_tokens), window)
    assert [sorted(map(len, part)) for part in slowly] == [
        sorted(np.diff(plan.starts[(plan.starts >= first) & (plan.starts <= end)]).tolist())
        for first, end in pairwise(plan.windows)
    ]
    assert plan.order.tolist() == [index for part in slowly for batch in part for index in batch]
    assert [index for batch in plan.batches[::-1] for index in batch] == plan.order.tolist()


@PROPERTY
@given(LENGTHS, st.integers(9, 60), st.integers(1, 4), st.integers(0, 3))
def test_pairs_are_exchanged_within_windows_only(lengths, tokens, window, epoch):
    batches = sampler(lengths, tokens, tokens, window=window)
    batches.set_epoch(epoch)
    source, target = zip(*lengths, strict=True)
    of_pair = {
        index: number
        for number, part in enumerate(planned_slowly(source, target, (tokens, tokens), window))
        for batch in part
        for index in batch
    }
    for batch in global_batches(batches):
        assert len({of_pair[index] for index in batch}) == 1


@PROPERTY
@given(LENGTHS, st.integers(9, 60), st.integers(9, 60), st.integers(1, 4), st.integers(0, 3))
def test_every_pair_comes_once_an_epoch_and_no_batch_exceeds_a_budget(
    lengths, source_tokens, target_tokens, parts, epoch
):
    source, target = zip(*lengths, strict=True)
    try:
        batches = sampler(lengths, source_tokens, target_tokens, num_parts=parts)
    except ValueError:  # a batch of fewer sentences than parts
        assume(False)
    batches.set_epoch(epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in global_batches(batches):
        assert fits(batch, source, target, (source_tokens, target_tokens))


@PROPERTY
@given(DIVISIBLE, BUDGET, BUDGET, st.integers(0, 5), st.integers(0, 3))
@example([(9, 9)] * 17, 16 * 9, 16 * 9, 0, 0)  # one sentence more than a batch holds: too few for the parts, once
@example([(1, 1)] * 100 + [(9, 9)] * 17, 16 * 9, 16 * 9, 0, 0)
def test_global_batches_are_the_same_on_any_number_of_processes_and_steps(
    lengths, source_tokens, target_tokens, seed, epoch
):
    by_parts = {}
    for parts in MANY:
        batches = sampler(lengths, source_tokens, target_tokens, num_parts=parts, seed=seed)
        batches.set_epoch(epoch)
        by_parts[parts] = global_batches(batches)
        assert len(batches) == len(list(batches)) == parts * len(by_parts[1])
        assert all(batches)  # no part is empty
    for parts in MANY:
        assert by_parts[parts] == by_parts[1]


@PROPERTY
@given(DIVISIBLE, BUDGET, st.sampled_from(MANY), st.integers(0, 5))
def test_the_costliest_batch_opens_the_first_epoch(lengths, tokens, parts, seed):
    batches = sampler(lengths, tokens, tokens, num_parts=parts, seed=seed)
    costs = [memory(batch, lengths) for batch in global_batches(batches)]
    assert costs[0] == max(costs)


@PROPERTY
@given(DIVISIBLE, BUDGET, BUDGET, st.sampled_from(MANY))
def test_the_share_of_padding_is_that_of_the_micro_batches_of_the_first_epoch(
    lengths, source_tokens, target_tokens, parts
):
    batches = sampler(lengths, source_tokens, target_tokens, num_parts=parts)
    padded = sum(padded_size(batch, lengths) for batch in batches)
    real = sum(source + target for source, target in lengths)
    assert batches.padding_share == pytest.approx((padded - real) / padded, abs=1e-12)


def company(sampler: TokenBudgetBatchSampler, epoch: int) -> dict[int, frozenset[int]]:
    """The other pairs of the global batch of each pair."""
    sampler.set_epoch(epoch)
    return {index: frozenset(batch) - {index} for batch in global_batches(sampler) for index in batch}


@pytest.mark.parametrize("budget", [300, 3000])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_two_epochs_share_one_windowth_of_a_batch(budget, window):
    batches = sampler(random_lengths(4000, 30), budget, budget, window=window)
    one, two = company(batches, 1), company(batches, 2)
    shared = np.mean([len(one[index] & two[index]) / len(one[index]) for index in one])
    assert shared == pytest.approx(1 / window, rel=0.2)


def test_epochs_differ_in_order_and_in_company_but_not_in_number():
    batches = sampler(random_lengths(400, 9), 90, 90, num_parts=2)
    epochs = []
    for epoch in range(4):
        batches.set_epoch(epoch)
        epochs.append(global_batches(batches))
        assert len(batches) == 2 * len(epochs[-1])
    for number, epoch in enumerate(epochs):
        for other in epochs[:number]:
            assert [len(batch) for batch in epoch] != [len(batch) for batch in other]  # another order
            assert {frozenset(batch) for batch in epoch} != {frozenset(batch) for batch in other}  # other company
        assert Counter(map(len, epoch)) == Counter(map(len, epochs[0]))


def test_an_epoch_is_made_by_its_seed_and_number_alone():
    lengths = random_lengths(300, 9)
    batches = sampler(lengths, 150, 150, num_parts=2, seed=5)
    first = list(batches)
    assert list(batches) == first
    batches.set_epoch(7)
    seventh = list(batches)
    batches.set_epoch(0)
    np.random.seed(1)
    assert list(batches) == first
    again = sampler(lengths, 150, 150, num_parts=2, seed=5)
    again.set_epoch(7)
    assert list(again) == seventh
    assert list(sampler(lengths, 150, 150, num_parts=2, seed=6)) != first


@pytest.mark.parametrize(("processes", "steps"), [(2, 1), (2, 3), (3, 2), (8, 1)])
def test_accelerate_deals_every_process_its_part_of_each_global_batch(processes, steps):
    lengths = random_lengths(700, 9)
    batches = sampler(lengths, 200, 200, num_parts=processes * steps)
    batches.set_epoch(2)
    alone = sampler(lengths, 200, 200)
    alone.set_epoch(2)
    ranks = [list(BatchSamplerShard(batches, processes, rank)) for rank in range(processes)]
    assert {len(rank) for rank in ranks} == {len(batches) // processes} == {steps * len(alone)}
    for number, whole in enumerate(alone):
        dealt = [index for rank in ranks for batch in rank[number * steps : (number + 1) * steps] for index in batch]
        assert len(dealt) == len(whole)  # disjoint
        assert set(dealt) == set(whole)
