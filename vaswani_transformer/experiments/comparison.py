"""Summary of a sweep over Table 3 (6.2): scores and cost of each row over its seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev

from ..io.typed_json import Record
from ..runs.paper_values import departures
from ..runs.records import Provenance, RunRecord, RunSettings
from .numbers import PAPER_SCORES, RowCost


_FIXED = {"parameters", "vocab_size", "others"}  # fields of a model that Table 3 does not vary


@dataclass(frozen=True, kw_only=True)
class SweepScore:
    """A score of a row.

    Attributes:
        mean: Mean over the seeds.
        standard_error: Standard error of the mean; None with one seed.
        values: The score of each seed.
    """

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
        parameters: Number of parameters.
        steps: Mean number of steps over the seeds.
        seeds: Seeds in ascending order.
        perplexity: Perplexity on the validation set.
        bleu: sacreBLEU on the validation set.
        length: Length of the translations divided by the references', mean over the seeds.
        cost: Mean cost over the seeds.
    """

    settings: dict[str, object]
    parameters: int
    steps: int
    seeds: list[int]
    perplexity: SweepScore
    bleu: SweepScore
    length: float
    cost: RowCost


@dataclass(frozen=True, kw_only=True)
class SharedFacts:
    """Properties that all runs of a sweep share."""

    pairs: int
    source_tokens: int
    target_tokens: int
    sentences: int
    signature: str
    schedule: str
    alpha: float | None
    departures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scale:
    """Widths and numbers of layers, relative to the paper's."""

    width: float
    depth: float


@dataclass(frozen=True, kw_only=True)
class SweepRecord(Record):
    """Results of a sweep over Table 3: `table3.json`.

    Attributes:
        run: Command, commit, machine and versions of the report.
        scale: Sizes of the models, relative to the paper's.
        rows: Rows by name, in the order of Table 3.
        commits: Commits of the trainings.
        hardware: Hardware of the trainings.
        shared: Properties that all trainings share.
    """

    run: Provenance
    scale: Scale
    rows: dict[str, Row]
    commits: list[str]
    hardware: list[str]
    shared: SharedFacts

    @property
    def reference(self) -> str:
        """The row to compare the others with: base, or else the first."""
        return next(iter(self.rows))


def summarize_sweep(runs: Mapping[str, Mapping[int, RunRecord]], run: Provenance, scale: Scale) -> SweepRecord:
    """Summarize the validation scores and costs of a sweep.

    Args:
        runs: The records of a sweep, by row of Table 3 and seed.
        run: Provenance of the report.
        scale: Sizes of the models, relative to the paper's.
    """
    records = [record for by_seed in runs.values() for record in by_seed.values()]
    first = records[0]
    return SweepRecord(
        run=run,
        scale=scale,
        rows={name: _summarize_row(runs[name]) for name in PAPER_SCORES if runs.get(name)},
        commits=sorted({record.run.commit for record in records}),
        hardware=sorted({record.run.hardware for record in records}),
        shared=SharedFacts(
            pairs=first.data.cleaning["kept"],
            source_tokens=first.settings.source_tokens,
            target_tokens=first.settings.target_tokens,
            sentences=first.validation.sentences,
            signature=first.validation.bleu.signature,
            schedule=_schedule(first.settings),
            alpha=first.settings.alpha,
            departures=[
                f"{name}: {value} (the paper: {paper})"
                for name, value, paper in departures(vars(first.settings) | first.settings.others)
                if name != "average_last"  # 6.2 averages no checkpoints
            ],
        ),
    )


def _schedule(settings: RunSettings) -> str:
    """The learning rate, and its warm-up."""
    rate, warmup = f"constant, {settings.learning_rate:g} (the paper: that of section 5.3)", "no warm-up"
    if settings.lr_scheduler_type == "inverse_sqrt":
        rate = f"that of section 5.3 times {settings.learning_rate_factor:g}"
    if settings.lr_scheduler_type != "constant":
        warmup = f"warm-up of {settings.warmup_steps:,} steps"
    return f"{rate}; {warmup} (the paper: 4,000)"


def _summarize_row(by_seed: Mapping[int, RunRecord]) -> Row:
    seeds = sorted(by_seed)
    records = [by_seed[seed] for seed in seeds]
    seconds, devices = fmean(record.training.seconds for record in records), records[0].training.processes
    accounted = fmean(record.training.cost.by_the_papers_accounting for record in records)
    return Row(
        settings={name: value for name, value in vars(records[0].model).items() if name not in _FIXED},
        parameters=records[0].model.parameters,
        steps=round(fmean(record.training.steps for record in records)),
        seeds=seeds,
        perplexity=SweepScore.from_values([record.validation.perplexity.perplexity for record in records]),
        bleu=SweepScore.from_values([record.validation.bleu.score for record in records]),
        length=fmean(record.validation.bleu.relative_length for record in records),
        cost=RowCost(
            seconds=seconds,
            devices=devices,
            rate=accounted / (seconds * devices),
            counted=fmean(record.training.cost.counted for record in records),
        ),
    )
