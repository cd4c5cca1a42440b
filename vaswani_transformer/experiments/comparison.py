"""Table 3 (6.2) and its costs (Table 2): the numbers of the paper, and of a sweep over its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean, stdev
from typing import Literal

from scipy.stats import ttest_1samp

from ..model.configuration_vaswani import PAPER_VARIANTS, VaswaniConfig
from ..runs.model_card import compare_with_paper
from ..runs.records import Provenance, RunRecord
from ..system.typed_json import Record
from ..training.costs import TrainingCost, training_flops


# Perplexity per word-piece and BLEU on newstest2013 (Table 3), by the names of `PAPER_VARIANTS`.
PAPER_SCORES = {
    "base": (4.92, 25.8),
    "A-h1": (5.29, 24.9),
    "A-h4": (5.00, 25.5),
    "A-h16": (4.91, 25.8),
    "A-h32": (5.01, 25.4),
    "B-dk16": (5.16, 25.1),
    "B-dk32": (5.01, 25.4),
    "C-N2": (6.11, 23.7),
    "C-N4": (5.19, 25.3),
    "C-N8": (4.88, 25.5),
    "C-d256": (5.75, 24.5),
    "C-d1024": (4.66, 26.0),
    "C-ff1024": (5.12, 25.4),
    "C-ff4096": (4.75, 26.2),
    "D-drop0.0": (5.77, 24.6),
    "D-drop0.2": (4.95, 25.5),
    "D-ls0.0": (4.67, 25.3),
    "D-ls0.2": (5.47, 25.7),
    "E-learned": (4.92, 25.7),
    "big": (4.33, 26.4),
}

# Steps and hours of training (5.2) on 8 P100 GPUs at 9.5 TFLOPS each (footnote 5).
PAPER_TRAININGS = {"base": (100_000, 12.0), "big": (300_000, 3.5 * 24)}
PAPER_DEVICES = 8
PAPER_RATE = 9.5e12
PAPER_BATCH_TOKENS = 25_000  # source tokens, and as many target tokens (5.1)
TOKENS_PER_SENTENCE = 25  # our guess for the paper's corpus; with 50 the count changes by less than one percent

ScoreName = Literal["perplexity", "bleu"]

_VARIED = {name for changes in PAPER_VARIANTS.values() for name in changes}


@dataclass(frozen=True, kw_only=True)
class SweepScore:
    """A score of a row over its seeds; with one seed, the mean has no standard error."""

    mean: float
    standard_error: float | None
    values: list[float]

    @classmethod
    def from_values(cls, values: list[float]) -> "SweepScore":
        error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
        return cls(mean=fmean(values), standard_error=error, values=values)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of Table 3, trained by the sweep.

    Attributes:
        settings: Hyper-parameters that Table 3 varies.
        steps: Mean number of steps over the seeds.
        seeds: Seeds in ascending order.
        perplexity, bleu: Perplexity and sacreBLEU on the validation set.
        length: Length of the translations divided by the references', mean over the seeds.
        seconds: Mean duration over the seeds.
        devices: Processes of a training.
        cost: Mean cost over the seeds.
    """

    settings: dict[str, object]
    parameters: int
    steps: int
    seeds: list[int]
    perplexity: SweepScore
    bleu: SweepScore
    length: float
    seconds: float
    devices: int
    cost: TrainingCost


@dataclass(frozen=True)
class Scale:
    """Widths and numbers of layers, relative to the paper's; and heads of the rows that have 8 in the paper."""

    width: float
    depth: float
    heads: int = 8


@dataclass(frozen=True, kw_only=True)
class SweepRecord(Record):
    """Results of a sweep over Table 3: `table3.json`.

    Attributes:
        run: Provenance of the report.
        rows: Rows by name, in the order of Table 3.
        commits, hardware: Commits and hardware of the trainings.
        facts: Lines of the report on what all trainings share, such as the corpus.
    """

    run: Provenance
    scale: Scale
    rows: dict[str, Row]
    commits: list[str]
    hardware: list[str]
    facts: list[str]

    @property
    def reference(self) -> str:
        """The row to which the others are compared: base, or else the first."""
        return next(iter(self.rows))

    def differences(self, row: str, score: ScoreName) -> list[float]:
        """Differences between a row and the reference, one for each common seed; of the perplexity, in nats a token."""
        scale = log if score == "perplexity" else float
        values, others = (
            dict(zip(each.seeds, map(scale, getattr(each, score).values), strict=True))
            for each in (self.rows[row], self.rows[self.reference])
        )
        return [values[seed] - others[seed] for seed in values if seed in others]

    def p_values(self, score: ScoreName) -> dict[str, float]:
        """p-values of the `differences` of each row, by two-sided paired t-tests with Holm's correction.

        Rows that share fewer than two seeds with the reference have no p-value.
        """
        values = {}
        for row in self.rows:
            differences = self.differences(row, score)
            if row != self.reference and len(differences) > 1:
                # A-h4 is base with --heads 4; the test would divide by 0.
                values[row] = float(ttest_1samp(differences, 0.0).pvalue) if any(differences) else 1.0
        return holm(values)


def paper_cost(name: str) -> TrainingCost:
    """The cost of the paper's "base" or "big" training; the count assumes full batches."""
    steps, hours = PAPER_TRAININGS[name]
    length = TOKENS_PER_SENTENCE
    counted = steps * training_flops(VaswaniConfig.from_variant(name), PAPER_BATCH_TOKENS // length, length, length)
    return TrainingCost.at_rate(PAPER_RATE, hours * 3600 * PAPER_DEVICES, counted)


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for their number (Holm 1979): the k-th smallest of n is multiplied by n + 1 - k."""
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(values, key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[name]))
        corrected[name] = largest
    return corrected


def summarize_sweep(runs: Mapping[str, Mapping[int, RunRecord]], run: Provenance, scale: Scale) -> SweepRecord:
    """Summarize the validation scores and costs of a sweep, whose records are by row of Table 3 and seed."""
    records = [record for by_seed in runs.values() for record in by_seed.values()]
    return SweepRecord(
        run=run,
        scale=scale,
        rows={name: _summarize_row(runs[name]) for name in PAPER_SCORES if runs.get(name)},
        commits=sorted({record.run.commit for record in records}),
        hardware=sorted({record.run.hardware for record in records}),
        facts=_shared_facts(records[0]),
    )


def _shared_facts(record: RunRecord) -> list[str]:
    """Corpus, batches, learning rate, departures from the paper, and scores, as any training of the sweep has them."""
    settings = record.settings
    return [
        f"Corpus: {record.data.cleaning['kept']:,} pairs (the paper: about 4.5 million)",
        f"Batches: at most {settings.source_tokens:,} source and {settings.target_tokens:,} target tokens (the paper: "
        "about 25,000 of each); steps are in the table (the paper: 100,000, big 300,000)",
        f"Learning rate: {_schedule(record)}",
        *(
            f"{each.name}: {each.value} (the paper: {each.paper})"
            for each in compare_with_paper(vars(settings) | settings.others)
            if each.departs and each.name != "average_last"  # 6.2 averages no checkpoints
        ),
        f"Length penalty of the search: alpha {settings.alpha:g} (the paper: 0.6)",
        f"Scores: of the last step, on the validation set of {record.validation.sentences:,} sentences (the paper: "
        "newstest2013)",
        f"sacreBLEU signature: `{record.validation.bleu.signature}` (not the paper's BLEU)",
    ]


def _schedule(record: RunRecord) -> str:
    """The learning rate, and its warm-up, which a limit of time may have cut."""
    settings, steps = record.settings, record.training.warmup_steps
    rate, warmup = f"constant, {settings.learning_rate:g} (the paper: that of section 5.3)", "no warm-up"
    if settings.lr_scheduler_type == "inverse_sqrt":
        rate = f"that of section 5.3 times {settings.learning_rate_factor:g}"
    if settings.lr_scheduler_type != "constant":
        made = "" if steps in (None, settings.warmup_steps) else f"{steps:,} of "
        warmup = f"warm-up of {made}{settings.warmup_steps:,} steps"
    return f"{rate}; {warmup} (the paper: 4,000)"


def _summarize_row(by_seed: Mapping[int, RunRecord]) -> Row:
    seeds = sorted(by_seed)
    records = [by_seed[seed] for seed in seeds]
    seconds, devices = fmean(record.training.seconds for record in records), records[0].training.processes
    accounted = fmean(record.training.cost.by_the_papers_accounting for record in records)
    return Row(
        settings={name: value for name, value in records[0].model.others.items() if name in _VARIED},
        parameters=records[0].model.parameters,
        steps=round(fmean(record.training.steps for record in records)),
        seeds=seeds,
        perplexity=SweepScore.from_values([record.validation.perplexity.perplexity for record in records]),
        bleu=SweepScore.from_values([record.validation.bleu.score for record in records]),
        length=fmean(record.validation.bleu.relative_length for record in records),
        seconds=seconds,
        devices=devices,
        cost=TrainingCost.at_rate(
            accounted / (seconds * devices),
            seconds * devices,
            counted=fmean(record.training.cost.counted for record in records),
        ),
    )
