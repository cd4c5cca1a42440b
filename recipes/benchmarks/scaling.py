"""Steps on 8 and 64 GPUs: measured balance of batches, estimated time of a step.

    python recipes/benchmarks/scaling.py --source ../shared/data/multi30k_en-de-fr/train.en.gz \\
        --target ../shared/data/multi30k_en-de-fr/train.de.gz

The division needs no GPU: it is what each rank would read in an epoch. All ranks wait for the slowest in each step, so
the measure is the sum over the steps of the costliest rank's padded tokens, divided by the mean rank's sum. The
estimate is arithmetic on data sheets; `scaling.md` states its formulas. Writes `scaling.json` and `scaling.md` beside
this script, or into `--output`.
"""

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.data.batching import TokenBudgetBatchSampler
from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.data.division import TARGET_COST
from vaswani_transformer.io.console import exit_on_error
from vaswani_transformer.io.files import atomic_write, make_directory
from vaswani_transformer.options.arguments import COUNT, RecipeParser, option
from vaswani_transformer.training.flops import training_flops


BUDGETS_AND_RANKS = [(25_000, 8), (25_000, 64), (100_000, 64), (200_000, 64)]
LONGEST = 256  # tokens; longer pairs are not trained on
SENTENCE = 25  # source and target tokens of the sentences whose operations are counted
VOCABULARY = 37_000  # the paper's, for English-German
UTILISATION = 0.35  # share of the peak rate while a rank computes
LINK_SHARE = 0.8  # share of the bandwidth that an all-reduce attains


@dataclass
class Arguments:
    """Options of the benchmark."""

    source: list[str] = option(MISSING, "Source side of each corpus.")
    target: list[str] = option(MISSING, "Target side of each corpus, in the same order.")
    vocab_size: int = option(8000, "Entries of each vocabulary.", COUNT)
    output: str = option(str(Path(__file__).parent), "Where the results go.")

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ValueError("source, target: give as many files of each")


@dataclass(frozen=True)
class Balance:
    """An epoch's division. The excesses are of the costliest rank over the mean rank, as a share of the mean.

    Attributes:
        tokens: Budget of a side of a global batch.
        mean_pairs: Sentence pairs of a rank in a step.
        excess: Summed over the steps, in padded source tokens plus `TARGET_COST` times padded target tokens.
        excess_of_equal_counts: The same if each rank had as many sentence pairs.
        excess_of_epoch: Of the padded tokens of both sides that a rank reads in the whole epoch.
    """

    corpus: str
    pairs: int
    tokens: int
    ranks: int
    steps: int
    mean_pairs: float
    excess: float
    excess_of_equal_counts: float
    excess_of_epoch: float


@dataclass(frozen=True)
class Machine:
    """GPUs, by their data sheets.

    Attributes:
        gpus: Number of GPUs, eight in each node.
        peak: Operations a second of a GPU, dense, in the type that it trains in.
        link: Bytes a second that a GPU sends to its neighbours over NVLink.
        network: Bytes a second that a node sends to the others.
    """

    name: str
    gpus: int
    peak: float
    link: float
    network: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second through the slowest link of a ring over all GPUs."""
        return LINK_SHARE * (self.link if self.gpus <= 8 else min(self.link, self.network))


def machines() -> list[Machine]:
    kinds = [
        ("P100, fp32", 10.6e12, 80e9, 50e9),
        ("A100, bf16", 312e12, 300e9, 200e9),
        ("H100, bf16", 989e12, 450e9, 400e9),
    ]
    return [Machine(name, gpus, *rates) for name, *rates in kinds for gpus in (8, 64)]


def all_reduce_seconds(machine: Machine, size: float) -> float:
    """Time of a ring all-reduce: each of n ranks sends 1/n of all bytes 2 (n - 1) times."""
    return 2 * (machine.gpus - 1) / machine.gpus * size / machine.bandwidth


def compute_seconds(machine: Machine, variant: str, tokens: int) -> float:
    """Time of forward and backward pass on a rank's share of a batch, with equal source and target tokens."""
    config = VaswaniConfig.from_variant(variant, vocab_size=VOCABULARY)
    flops = training_flops(config, tokens // SENTENCE, SENTENCE, SENTENCE)
    return flops / machine.gpus / (UTILISATION * machine.peak)


def step_seconds(machine: Machine, variant: str, tokens: int) -> float:
    """Time of a step whose all-reduce of fp32 gradients begins when they are complete."""
    return compute_seconds(machine, variant, tokens) + all_reduce_seconds(machine, 4 * count_parameters(variant))


def count_parameters(variant: str) -> int:
    config = VaswaniConfig.from_variant(variant, vocab_size=VOCABULARY)
    with torch.device("meta"):
        return VaswaniForConditionalGeneration(config).num_parameters()


def corpus_lengths(corpus: Dataset, vocab_size: int) -> np.ndarray:
    """`[2, pairs]` tokens of each sentence and its translation, under a vocabulary trained on some of them."""
    sample = (text for pair in corpus[:20_000]["translation"] for text in pair.values())
    tokenizer = VaswaniTokenizer.train(sample, vocab_size=vocab_size, show_progress=False)
    encoded = encode_corpus(corpus, tokenizer, "source", "target")
    lengths = np.array([encoded["source_length"][:], encoded["target_length"][:]])
    return lengths[:, ((lengths > 1) & (lengths <= LONGEST)).all(0)]


def balance(corpus: str, lengths: np.ndarray, tokens: int, ranks: int) -> Balance:
    """Balance of the ranks' batches over an epoch."""
    sampler = TokenBudgetBatchSampler(lengths[0], lengths[1], tokens, tokens, num_parts=ranks)
    parts = list(sampler)
    steps = [np.concatenate(parts[first : first + ranks]) for first in range(0, len(parts), ranks)]
    equal = [part for step in steps for part in np.array_split(step, ranks)]
    sizes = _padded(lengths, parts).reshape(-1, ranks, 2)  # [steps, ranks, sides]
    return Balance(
        corpus=corpus,
        pairs=lengths.shape[1],
        tokens=tokens,
        ranks=ranks,
        steps=len(sizes),
        mean_pairs=lengths.shape[1] / len(parts),
        excess=_excess(sizes @ (1, TARGET_COST)),
        excess_of_equal_counts=_excess(_padded(lengths, equal).reshape(-1, ranks, 2) @ (1, TARGET_COST)),
        excess_of_epoch=_excess(sizes.sum((0, 2), keepdims=True)[:, :, 0]),
    )


def _padded(lengths: np.ndarray, parts: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    """`[parts, sides]` tokens with padding."""
    return np.array([len(part) * lengths[:, part].max(1) for part in parts])


def _excess(costs: np.ndarray) -> float:
    """Excess of each step's costliest rank over the mean; `costs` is `[steps, ranks]`."""
    return float(costs.max(1).sum() / costs.mean(1).sum() - 1)


def report(balances: list[Balance]) -> str:
    rows = [
        f"| {row.corpus} | {row.tokens:,} | {row.ranks} | {row.steps} | {row.mean_pairs:.0f} | {row.excess:.1%} "
        f"| {row.excess_of_equal_counts:.1%} | {row.excess_of_epoch:.1%} |"
        for row in balances
    ]
    return TEXT.format(
        balance="\n".join(rows),
        steps="\n".join(_step_rows()),
        machines="\n".join(_machine_rows()),
        **{variant: step_seconds(machines()[0], variant, 25_000) for variant in ("base", "big")},
        utilisation=UTILISATION,
        link_share=LINK_SHARE,
        sentence=SENTENCE,
        vocabulary=VOCABULARY,
        target_cost=TARGET_COST,
    )


def _machine_rows() -> list[str]:
    return [
        f"| {it.name} | {it.peak / 1e12:,.1f} | {it.link / 1e9:.0f} | {it.network / 1e9:.0f} |"
        for it in machines()
        if it.gpus == 8
    ]


def _step_rows() -> list[str]:
    rows = []
    for variant in ("base", "big"):
        parameters = count_parameters(variant)
        for machine in machines():
            for tokens in (25_000, 200_000)[: 1 + (machine.gpus == 64)]:
                compute = compute_seconds(machine, variant, tokens)
                full, half = (all_reduce_seconds(machine, size * parameters) for size in (4, 2))
                times = [compute, full, half, max(compute, full), compute + full]
                numbers = " | ".join(f"{1000 * time:,.1f}" for time in times)
                rows.append(
                    f"| {variant}, {parameters / 1e6:.0f}M | {machine.gpus} {machine.name} | {tokens:,} | {numbers} |"
                )
    return rows


TEXT = """# Steps on 8 and 64 GPUs

Written by `recipes/benchmarks/scaling.py`. The division is measured on real corpora, the times are estimates from
data sheets: nothing of them was run.

## Division of batches

All ranks wait for the slowest in each step. *Excess*: the sum over an epoch's steps of the costliest rank's padded
tokens, a target token counted {target_cost} times for its time, over the mean rank's. *Equal counts*: the same if
ranks got as many sentence pairs each. *Epoch*: padded tokens of both sides that the rank with most of them reads in
an epoch, over the mean.

| corpus | tokens a batch | ranks | steps | pairs a rank and step | excess | equal counts | epoch |
|---|---|---|---|---|---|---|---|
{balance}

Every pair is read once in an epoch, and all ranks make the same number of steps. A rank's share cannot be finer
than a sentence: with few pairs a rank and step, one sentence more is several percent. So the paper's 25,000 tokens,
meant for 8 GPUs, are within 3 % there, and not on 64, which need a batch some times larger.

## Time of a step

Milliseconds:

| model | GPUs | tokens a batch | compute | all-reduce, fp32 | bf16 | step, best | step, worst |
|---|---|---|---|---|---|---|---|
{steps}

- Compute: operations of the matrix products of a forward and a backward pass (`training/flops.py`) on sentences
  of {sentence} tokens a side and a vocabulary of {vocabulary:,}, over GPUs x peak x {utilisation:.0%} utilisation
  (assumed).
- All-reduce: a ring of n GPUs, in which each sends 2 (n - 1) / n times the bytes of the gradients: 4 (fp32, which
  is also what bf16 autocast leaves) or 2 (compressed to bf16) for each parameter. The bandwidth is that of the
  slowest link of the ring, NVLink in a node and the node's network adapters together between nodes, times
  {link_share:.0%} (assumed). The latency of a ring's 2 (n - 1) messages is left out.
- Step: DDP's all-reduce runs behind the backward pass. Best: the longer of both. Worst: their sum; gradients of the
  shared embedding are complete last. The optimizer, reading data and the excess above come on top.
- Check: the paper measured 0.4 s (base) and 1.0 s (big) a step on 8 P100 (5.2), of 25,000 tokens a side; the worst
  case here is {base:.2f} s and {big:.2f} s.
- Not to be expected: {utilisation:.0%} of the peak of an A100 or H100 with 400 tokens a side on each GPU (64 GPUs,
  25,000 tokens); kernels that small leave a GPU waiting, and such a step is bound by their launches.

| GPU | peak, dense, TFLOP/s | NVLink, one direction, GB/s | network of a node of 8, GB/s |
|---|---|---|---|
{machines}

From the data sheets of Tesla P100 SXM2 (NVLink 1, 4 x 20 GB/s), A100 SXM (NVLink 3, 12 x 25 GB/s) and H100 SXM
(NVLink 4, 18 x 25 GB/s), and of the nodes DGX-1 (4 adapters of 100 Gb/s), DGX A100 (8 of 200 Gb/s) and DGX H100 (8
of 400 Gb/s).
"""


def main() -> None:
    (args,) = RecipeParser((Arguments,)).parse()
    with exit_on_error("scaling.py"):
        output = make_directory("output", args.output)
        corpora = [
            load_parallel_corpus(list(files), "source", "target")
            for files in zip(args.source, args.target, strict=True)
        ]
        balances = []
        for source, corpus in zip(args.source, corpora, strict=True):
            lengths, name = corpus_lengths(corpus, args.vocab_size), Path(source).resolve().parent.name
            balances += [balance(name, lengths, tokens, ranks) for tokens, ranks in BUDGETS_AND_RANKS]
    atomic_write(output / "scaling.json", json.dumps([asdict(row) for row in balances], indent=2) + "\n")
    atomic_write(output / "scaling.md", report(balances))
    print(report(balances))


if __name__ == "__main__":
    main()
