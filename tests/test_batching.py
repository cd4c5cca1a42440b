"""Batches against a greedy loop, their parts against all divisions there are, and epochs of up to 64 ranks."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain, combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate.data_loader import BatchSamplerShard
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from hypothesis import example, given
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import DataCollatorForSeq2Seq

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTrainer, VaswaniTrainingArguments
from vaswani_transformer.data.batching import (
    MixedCorpus,
    Mixture,
    PaddedCollator,
    TokenBudgetBatchSampler,
    divide_batches,
    plan_batches,
)
from vaswani_transformer.data.text_files import read_lines


MANY = (1, 2, 8, 6)  # 6: three processes of two accumulation steps each
PAIR = st.tuples(st.integers(1, 9), st.integers(1, 9))
LENGTHS = st.lists(PAIR, min_size=1, max_size=60)
# Long enough corpora, and budgets of at least 16 of the longest sentences, can be divided by any of MANY.
DIVISIBLE = st.lists(PAIR, min_size=16, max_size=150)
BUDGET = st.integers(16 * 9, 30 * 9)


@st.composite
def mixtures(draw, corpus=LENGTHS) -> tuple[list[tuple[int, int]], list[MixedCorpus]]:
    """Lengths of all pairs, and up to two corpora mixed in."""
    lengths, mixed = draw(corpus), []
    for more in draw(st.lists(LENGTHS, max_size=2)):
        mixed.append(MixedCorpus(len(lengths), len(more), draw(st.integers(1, 90))))
        lengths = lengths + more
    return lengths, mixed


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


def global_batches(sampler: TokenBudgetBatchSampler, epoch: int = 0) -> list[list[int]]:
    sampler.set_epoch(epoch)
    parts, count = list(sampler), sampler.num_parts
    return [list(chain(*parts[first : first + count])) for first in range(0, len(parts), count)]


def cost(pairs: list[tuple[int, int]], of_target: int) -> int:
    """The cost of a batch, padding included, with that of a target token relative to a source token."""
    return len(pairs) * (max(source for source, _ in pairs) + of_target * max(target for _, target in pairs))


def random_lengths(count: int, longest: int) -> list[tuple[int, int]]:
    lengths = np.random.default_rng(0).integers(1, longest + 1, size=(count, 2))
    return [tuple(pair) for pair in lengths.tolist()]


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


@given(LENGTHS, st.integers(9, 60), st.integers(1, 4), st.integers(0, 3))
def test_pairs_are_exchanged_within_windows_only(lengths, tokens, window, epoch):
    source, target = zip(*lengths, strict=True)
    of_pair = {
        index: number
        for number, part in enumerate(planned_slowly(source, target, (tokens, tokens), window))
        for batch in part
        for index in batch
    }
    for batch in global_batches(sampler(lengths, tokens, tokens, window=window), epoch):
        assert len({of_pair[index] for index in batch}) == 1


@given(mixtures(), st.integers(9, 60), st.integers(9, 60), st.integers(1, 4))
def test_an_epoch_has_every_pair_of_the_corpus_and_so_many_of_each_other(mixture, source_tokens, target_tokens, window):
    lengths, mixed = mixture
    trained = mixed[0].first if mixed else len(lengths)
    batches = sampler(lengths, source_tokens, target_tokens, window=window, mixed=mixed)
    source, target = zip(*lengths, strict=True)
    sizes = []
    for epoch in range(3):
        planned = global_batches(batches, epoch)
        sizes.append(sorted(map(len, planned)))
        counts = Counter(chain(*planned))
        assert [counts[row] for row in range(trained)] == [1] * trained
        for corpus in mixed:
            drawn = [counts[row] for row in range(corpus.first, corpus.first + corpus.pairs)]
            assert sum(drawn) == corpus.drawn
            assert max(drawn) - min(drawn) <= 1
        assert all(fits(batch, source, target, (source_tokens, target_tokens)) for batch in planned)
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(batches) == len(sizes[0])


@given(mixtures(DIVISIBLE), BUDGET, BUDGET, st.integers(0, 5), st.integers(0, 3))
@example(([(9, 9)] * 17, []), 16 * 9, 16 * 9, 0, 0)  # one sentence more than a batch holds: too few for the parts, once
@example(([(1, 1)] * 100 + [(9, 9)] * 17, []), 16 * 9, 16 * 9, 0, 0)
def test_global_batches_are_the_same_on_any_number_of_processes_and_steps(
    mixture, source_tokens, target_tokens, seed, epoch
):
    lengths, mixed = mixture
    expected = global_batches(sampler(lengths, source_tokens, target_tokens, seed=seed, mixed=mixed), epoch)
    for parts in MANY[1:]:
        batches = sampler(lengths, source_tokens, target_tokens, num_parts=parts, seed=seed, mixed=mixed)
        assert global_batches(batches, epoch) == expected
        assert len(batches) == len(list(batches)) == parts * len(expected)
        assert all(batches)  # no part is empty


@given(DIVISIBLE, BUDGET, st.sampled_from(MANY), st.integers(0, 5))
def test_the_costliest_batch_opens_the_first_epoch(lengths, tokens, parts, seed):
    """By memory: a target token, with its logits, needs about three times as much as a source token."""
    batches = global_batches(sampler(lengths, tokens, tokens, num_parts=parts, seed=seed))
    costs = [cost([lengths[index] for index in batch], 3) for batch in batches]
    assert costs[0] == max(costs)


@given(mixtures(DIVISIBLE), BUDGET, BUDGET, st.sampled_from(MANY))
def test_the_share_of_padding_is_that_of_the_micro_batches_of_the_first_epoch(
    mixture, source_tokens, target_tokens, parts
):
    lengths, mixed = mixture
    batches = sampler(lengths, source_tokens, target_tokens, num_parts=parts, mixed=mixed)
    pairs = [[lengths[index] for index in batch] for batch in batches]
    padded = sum(cost(batch, 1) for batch in pairs)
    real = sum(map(sum, chain(*pairs)))
    assert batches.padding_share == pytest.approx((padded - real) / padded, abs=1e-12)


def company(sampler: TokenBudgetBatchSampler, epoch: int) -> dict[int, frozenset[int]]:
    """The other pairs of the global batch of each pair."""
    return {index: frozenset(batch) - {index} for batch in global_batches(sampler, epoch) for index in batch}


@pytest.mark.parametrize("budget", [300, 3000])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_two_epochs_share_one_windowth_of_a_batch(budget, window):
    batches = sampler(random_lengths(4000, 30), budget, budget, window=window)
    one, two = company(batches, 1), company(batches, 2)
    shared = np.mean([len(one[index] & two[index]) / len(one[index]) for index in one])
    assert shared == pytest.approx(1 / window, rel=0.2)


def test_epochs_differ_in_order_and_in_company_but_not_in_number():
    batches = sampler(random_lengths(400, 9), 90, 90, num_parts=2)
    epochs = [global_batches(batches, epoch) for epoch in range(4)]
    for one, other in combinations(epochs, 2):
        assert [len(batch) for batch in one] != [len(batch) for batch in other]  # another order
        assert {frozenset(batch) for batch in one} != {frozenset(batch) for batch in other}  # other company
        assert Counter(map(len, one)) == Counter(map(len, other))


def test_an_epoch_is_made_by_its_seed_and_number_alone():
    lengths = random_lengths(300, 9)

    def batches(seed: int = 5) -> TokenBudgetBatchSampler:
        return sampler(lengths, 150, 150, num_parts=2, seed=seed, mixed=[MixedCorpus(250, 50, 70)])

    used = batches()
    first, seventh = global_batches(used, 0), global_batches(used, 7)
    np.random.seed(1)
    assert global_batches(used, 0) == first
    assert global_batches(batches(), 7) == seventh
    assert global_batches(batches(seed=6)) != first


@pytest.mark.parametrize(("processes", "steps"), [(2, 1), (2, 3), (3, 2), (8, 1)])
def test_accelerate_deals_every_process_its_part_of_each_global_batch(processes, steps):
    lengths = random_lengths(700, 9)
    batches = sampler(lengths, 200, 200, num_parts=processes * steps)
    expected = global_batches(sampler(lengths, 200, 200), 2)
    batches.set_epoch(2)
    ranks = [list(BatchSamplerShard(batches, processes, rank)) for rank in range(processes)]
    assert {len(rank) for rank in ranks} == {len(batches) // processes} == {steps * len(expected)}
    for number, whole in enumerate(expected):
        dealt = [index for rank in ranks for batch in rank[number * steps : (number + 1) * steps] for index in batch]
        assert sorted(dealt) == sorted(whole)


# Corpora mixed in.


@pytest.mark.parametrize(("pairs", "drawn"), [(30, 7), (30, 20), (30, 30), (30, 100)])
def test_all_pairs_are_drawn_equally_often(pairs, drawn):
    sizes = np.repeat([5, 3, 1], pairs // 3)
    mixture = Mixture(np.concatenate([[9, 9], sizes]), [MixedCorpus(2, pairs, drawn)])
    epochs = 6000
    counts = np.zeros(pairs)
    for epoch in range(epochs):
        rows = mixture.draw(np.random.default_rng(epoch))
        assert rows[:2].tolist() == [0, 1]
        np.add.at(counts, rows[2:] - 2, 1)
    # An epoch's count of a pair differs from the mean by less than 1, so its variance is at most 1/4: six sigma.
    assert np.abs(counts / epochs - drawn / pairs).max() <= 6 * 0.5 / epochs**0.5


def test_epochs_draw_other_pairs():
    batches = sampler([(4, 4)] * 20 + [(3, 5)] * 100, 40, 60, mixed=[MixedCorpus(20, 100, 20)])
    drawn = [set(chain(*global_batches(batches, epoch))) - set(range(20)) for epoch in range(8)]
    assert all(len(rows) == 20 for rows in drawn)
    assert len({frozenset(rows) for rows in drawn}) == 8
    assert len(set.union(*drawn)) > 70  # 1 - 0.8 ** 8 of 100 are 83


def test_a_drawn_pair_too_long_for_the_budget_is_refused():
    with pytest.raises(ValueError, match="target_tokens: a budget of 60 tokens cannot hold the longest sentence"):
        sampler([(1, 1), (2, 2), (1, 61), (2, 3)], 40, 60, mixed=[MixedCorpus(1, 3, 1)])


# Batches of few shapes, for a compiled step.


def padded_sizes(sampler: TokenBudgetBatchSampler, lengths: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """`[batches, 3]` sentences and longest lengths of the micro-batches of an epoch, and the shapes for them."""
    sampler.set_epoch(epoch)
    sizes = np.array([[len(batch), *lengths[:, batch].max(1)] for batch in sampler])
    return sizes, sampler.pad(sizes)


@given(mixtures(DIVISIBLE), BUDGET, BUDGET, st.sampled_from(MANY), st.integers(1, 4), st.integers(1, 5))
def test_few_shapes_hold_the_micro_batches_of_all_epochs(
    mixture, source_tokens, target_tokens, parts, window, max_shapes
):
    lengths, mixed = mixture
    options = {"num_parts": parts, "window": window, "mixed": mixed}
    batches = sampler(lengths, source_tokens, target_tokens, max_shapes=max_shapes, **options)
    assert len(batches.shapes) <= max_shapes
    for epoch in range(3):
        sizes, padded = padded_sizes(batches, np.array(lengths).T, epoch)
        assert (sizes <= padded).all()
        assert {*map(tuple, padded.tolist())} <= {*map(tuple, batches.shapes.tolist())}
        if epoch == 0:
            real = np.array(lengths)[list(chain(*batches))].sum()
            assert batches.padding_share == pytest.approx(1 - real / (padded[:, 0] @ padded[:, 1:]).sum())


def real_lengths(shared_data: Path, files: str) -> np.ndarray:
    """`[2, pairs]` lengths of a corpus, in pieces of words of at most six letters."""
    sides = [read_lines(shared_data / files.format(side)) for side in ("en", files.split("/")[0][-2:])]
    return np.array([[len(re.findall(r"\w{1,6}|[^\w\s]", line)) + 1 for line in side] for side in sides])


@pytest.mark.parametrize(
    ("files", "budget"),
    [
        ("multi30k_en-de-fr/train.{}.gz", 4096),
        ("multi30k_en-de-fr/train.{}.gz", 6000),
        ("tatoeba_en-fr/train.{}.gz", 6000),
        ("tatoeba_en-fr/train.{}.gz", 25_000),
    ],
)
def test_few_shapes_compute_little_more_of_a_real_corpus(shared_data, files, budget):
    lengths = real_lengths(shared_data, files)
    plain, shaped = (TokenBudgetBatchSampler(*lengths, budget, budget, max_shapes=shapes) for shapes in (None, 24))
    computed = []
    for batches in (plain, shaped):
        _, padded = padded_sizes(batches, lengths, 1)
        computed.append((padded[:, 0] @ padded[:, 1:]).sum())
    assert len({*map(tuple, padded.tolist())}) <= 24
    assert computed[1] <= 1.08 * computed[0]
    assert (padded[:, :1] * padded[:, 1:] <= budget).all()
    assert len(shaped) == pytest.approx(len(plain), rel=0.02)  # global batches have as many tokens


def test_a_collator_fills_the_shape_with_ignored_labels(tokenizer):
    lengths = [(5, 4), (3, 6), (4, 4)]
    batches = sampler(lengths, 18, 18, max_shapes=1)
    rows = [{"input_ids": [7] * source, "labels": [9] * target} for source, target in lengths]
    collate = PaddedCollator(DataCollatorForSeq2Seq(tokenizer), batches, tokenizer.pad_token_id)
    batches.shapes = np.array([[4, 8, 9]])
    batch = collate(rows)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (4, 8)
    assert batch["labels"].shape == (4, 9)
    assert batch["attention_mask"].sum(1).tolist() == [5, 3, 4, 5]  # no sentence without tokens
    assert torch.equal(batch["input_ids"] == 7, batch["attention_mask"] == 1)
    assert batch["labels"].ne(-100).sum(1).tolist() == [4, 6, 4, 0]


# Parts of a batch, each with the cost of its time: a target token takes about twice that of a source token.


def smallest_maximum(batch: list[tuple[int, int]], parts: int) -> int:
    """The largest cost of a part in the best of all divisions into consecutive parts."""
    divisions = ([0, *cuts, len(batch)] for cuts in combinations(range(1, len(batch)), parts - 1))
    return min(max(cost(batch[first:end], 2) for first, end in pairwise(division)) for division in divisions)


@given(st.lists(st.lists(PAIR, min_size=4, max_size=9), min_size=1, max_size=4), st.integers(1, 4))
@example([[(1, 1)] * 4 + [(9, 9)]], 4)
@example([[(9, 1), (1, 1), (1, 1), (1, 9)]], 2)
def test_the_costliest_part_is_as_cheap_as_in_any_division(batches, parts):
    batches = [sorted(batch, key=lambda pair: pair[::-1]) for batch in batches]
    pairs, starts = list(chain(*batches)), np.cumsum([0, *map(len, batches)])
    cuts = divide_batches(starts, *np.array(pairs, dtype=np.int32).T, parts).tolist()
    assert cuts[::parts] == starts.tolist()
    divided = [pairs[first:end] for first, end in pairwise(cuts)]
    assert all(divided)
    for number, batch in enumerate(batches):
        its = divided[number * parts : (number + 1) * parts]
        assert max(cost(part, 2) for part in its) == smallest_maximum(batch, parts)


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
        group = {"MASTER_ADDR": "localhost", "MASTER_PORT": 1, "WORLD_SIZE": ranks}
        for name, value in {**group, "RANK": rank, "LOCAL_RANK": rank % 8}.items():
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
