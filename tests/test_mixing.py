"""Corpora mixed in: how often which pair is drawn, into batches that are planned once for all epochs."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vaswani_transformer.data.batching import MixedCorpus, Mixture, TokenBudgetBatchSampler


PROPERTY = settings(deadline=None, database=None)
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40)
DRAWN = st.integers(1, 90)


@st.composite
def mixtures(draw) -> tuple[list[tuple[int, int]], list[MixedCorpus]]:
    """Lengths of all pairs, and up to two corpora mixed in."""
    lengths, mixed = draw(LENGTHS), []
    for more in draw(st.lists(LENGTHS, max_size=2)):
        mixed.append(MixedCorpus(len(lengths), len(more), draw(DRAWN)))
        lengths = lengths + more
    return lengths, mixed


def sampler(lengths: list[tuple[int, int]], mixed: list[MixedCorpus], **settings: int) -> TokenBudgetBatchSampler:
    source, target = zip(*lengths, strict=True)
    return TokenBudgetBatchSampler(source, target, 40, 60, mixed=mixed, **settings)


def global_batches(batches: TokenBudgetBatchSampler, epoch: int) -> list[list[int]]:
    batches.set_epoch(epoch)
    parts, count = list(batches), batches.num_parts
    return [sorted(chain(*parts[first : first + count])) for first in range(0, len(parts), count)]


@PROPERTY
@given(mixtures(), st.integers(1, 4))
def test_an_epoch_has_every_pair_of_the_corpus_and_so_many_of_each_other(mixture, window):
    lengths, mixed = mixture
    own = mixed[0].first if mixed else len(lengths)
    batches = sampler(lengths, mixed, window=window)
    sizes = []
    for epoch in range(3):
        planned = global_batches(batches, epoch)
        sizes.append(sorted(map(len, planned)))
        counts = Counter(chain(*planned))
        assert [counts[row] for row in range(own)] == [1] * own
        for corpus in mixed:
            drawn = [counts[row] for row in range(corpus.first, corpus.first + corpus.pairs)]
            assert sum(drawn) == corpus.drawn
            assert max(drawn) - min(drawn) <= 1
        for batch in planned:
            source, target = zip(*(lengths[row] for row in batch), strict=True)
            assert len(batch) * max(source) <= 40
            assert len(batch) * max(target) <= 60
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(batches) == len(sizes[0])


@PROPERTY
@given(mixtures(), st.integers(1, 3), st.integers(2, 4))
def test_global_batches_do_not_depend_on_the_processes(mixture, epoch, parts):
    try:
        divided = sampler(*mixture, num_parts=parts)
    except ValueError:  # a batch of fewer pairs than parts
        assume(False)
    expected = global_batches(sampler(*mixture), epoch)
    assert global_batches(divided, epoch) == expected
    ranks = [list(BatchSamplerShard(divided, parts, rank, even_batches=False)) for rank in range(parts)]
    assert [sorted(chain(*step)) for step in zip(*ranks, strict=True)] == expected


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


def test_epochs_draw_other_pairs_and_repeat_for_the_same_seed():
    lengths = [(4, 4)] * 20 + [(3, 5)] * 100
    mixed = [MixedCorpus(20, 100, 20)]
    drawn = [set(chain(*global_batches(sampler(lengths, mixed), epoch))) - set(range(20)) for epoch in range(8)]
    assert all(len(rows) == 20 for rows in drawn)
    assert len({frozenset(rows) for rows in drawn}) == 8
    assert len(set.union(*drawn)) > 70  # 1 - 0.8 ** 8 of 100 are 83
    again = [set(chain(*global_batches(sampler(lengths, mixed), epoch))) - set(range(20)) for epoch in range(8)]
    other = global_batches(sampler(lengths, mixed, seed=1), 0)
    assert again == drawn
    assert set(chain(*other)) - set(range(20)) != drawn[0]


def test_the_share_of_padding_is_that_of_the_pairs_drawn():
    batches = sampler([(4, 2)] * 10 + [(4, 1)] * 50, [MixedCorpus(10, 50, 10)])
    assert batches.padding_share == pytest.approx(1 - sum(4 + 2 + 4 + 1 for _ in range(10)) / (20 * 6), abs=0.1)
    assert sampler([(4, 4)] * 10 + [(4, 4)] * 50, [MixedCorpus(10, 50, 30)]).padding_share == 0


def test_a_drawn_pair_too_long_for_the_budget_is_refused():
    with pytest.raises(ValueError, match="target_tokens: a budget of 60 tokens cannot hold the longest sentence"):
        sampler([(1, 1), (2, 2), (1, 61), (2, 3)], [MixedCorpus(1, 3, 1)])
