"""Results of runs: `RunRecord` is a training's `all_results.json`, `ScoreRecord` a scoring's `results.json`.

The dataclasses have the fields of the files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..evaluation.confidence import ConfidenceReport
from ..evaluation.robustness import Robustness
from ..evaluation.scores import PairedComparison, Scores
from ..system.typed_json import REST, Record
from ..training.costs import TrainingCost


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Origin of the numbers of a run.

    Attributes:
        command: The command, without secrets and without paths outside the working directory.
        commit: Commit of the package, with "-dirty" if files differ from it.
        date: Date, such as 2030-12-31.
        hardware: Processor and threads, or GPUs.
        versions: Versions of Python and of the numerical libraries.
        repository: Repository on the Hub that the run pushes to.
    """

    command: str
    commit: str
    date: str
    hardware: str
    versions: dict[str, str]
    repository: str | None = None


@dataclass(frozen=True, kw_only=True)
class MixedData:
    """A corpus mixed into a training: in each epoch `ratio` pairs of it for each pair of the training corpus."""

    corpus: list[str]
    ratio: float
    cleaning: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The corpora of a training (5.1).

    Attributes:
        source_language, target_language: Codes of the languages.
        train, test: Files, or the name of a dataset.
        cleaning: Number of sentence pairs "kept", and dropped by reason; and "augmented", added before cleaning.
        dataset_config: Configuration of the datasets on the Hub.
        max_length: Sub-words of the longest sentence kept.
        license: License of the model.
        attribution: Authors of the corpora, in words.
        domain: Kind of text, in words.
        datasets: Datasets on the Hub that the corpora come from.
        mixed: Corpora mixed into the training, such as "replay"; None without any.
        replay_test: The second test set; None without one.
        in_train: Sentences of held-out corpora that the training corpus has; see `count_in_train`. None if unknown.
        others: All other data options.
    """

    source_language: str
    target_language: str
    train: list[str]
    cleaning: dict[str, int]
    test: list[str] | None
    dataset_config: str | None
    max_length: int | None
    license: str | None = None
    attribution: str | None = None
    domain: str | None = None
    datasets: list[str] | None = None
    mixed: dict[str, MixedData] | None = None
    replay_test: list[str] | None = None
    in_train: dict[str, dict[str, int]] | None = None
    others: dict[str, object] = field(default_factory=dict, metadata=REST)


@dataclass(frozen=True, kw_only=True)
class RunModel:
    """Size of a model; `others` are all other fields of its configuration."""

    parameters: int
    vocab_size: int
    others: dict[str, object] = field(default_factory=dict, metadata=REST)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Options of a training on which its weights depend, and `alpha`, the length penalty (6.1) of the model.

    The `learning_rate` is a constant schedule's; `others` are the options that no report names.
    """

    source_tokens: int
    target_tokens: int
    warmup_steps: int
    learning_rate_factor: float
    lr_scheduler_type: str
    learning_rate: float
    precision: str
    alpha: float | None
    others: dict[str, object] = field(default_factory=dict, metadata=REST)


@dataclass(frozen=True, kw_only=True)
class RunTraining:
    """Duration, cost and progress of a training.

    Attributes:
        seconds: Duration, scoring excluded.
        processor_seconds: Processor time of all threads of the main process.
        cost: Cost by Table 2.
        warmup_steps: Steps during which the learning rate rose; None if unknown.
        limits: The options that ended the training, such as max_steps, and their values; None in earlier records.
        loss_by_tenth: Result of the function `loss_by_tenth`; None in earlier records.
        epochs: Passes over the corpus.
        target_tokens: Target sub-words seen, padding excluded.
        padding_share: Share of padding in the batches planned for the first epoch.
        processes: Number of processes.
        averaged: Names of the checkpoints averaged (6.1); empty without averaging.
        resumed_from: Name of the checkpoint that the run resumed from.
    """

    seconds: float
    processor_seconds: float
    cost: TrainingCost
    steps: int
    epochs: float
    target_tokens: int
    padding_share: float
    processes: int
    averaged: list[str]
    resumed_from: str | None
    warmup_steps: int | None = None
    limits: dict[str, float] | None = None
    loss_by_tenth: list[float] | None = None

    @property
    def is_average(self) -> bool:
        """Whether the final model is an average, not the last checkpoint."""
        return len(self.averaged) > 1


def loss_by_tenth(log_history: Sequence[Mapping[str, float]]) -> list[float] | None:
    """Mean loss without smoothing in each tenth of the logged steps; None with fewer than five logs."""
    logs = [(entry["step"], entry["nll_loss"]) for entry in log_history if "nll_loss" in entry]
    if len(logs) < 5:
        return None
    steps, losses = np.array([(0.0, 0.0), *logs]).T  # each is the mean since the step before
    ends = np.linspace(0, steps[-1], 11)
    sums = np.interp(ends, steps, np.cumsum(losses * np.diff(steps, prepend=0.0)))
    return [float(mean) for mean in np.diff(sums) / np.diff(ends)]


@dataclass(frozen=True, kw_only=True)
class ParentModel:
    """The saved model that a fine-tuning started from: its directory or name on the Hub, and its weights' digest."""

    name: str
    is_on_hub: bool
    sha256: str


@dataclass(frozen=True)
class Example:
    """A sentence of the test set, and the chrF of its translation."""

    source: str
    translation: str
    reference: str
    chrf: float


@dataclass(frozen=True, kw_only=True)
class TrainingResults(Record):
    """Common part of `all_results.json` for all recipes that train; each adds its scores."""

    run: Provenance
    data: RunData
    model: RunModel
    settings: RunSettings
    training: RunTraining

    @classmethod
    def from_directory(cls, directory: Path) -> Self | None:
        """Read the results in a training's output directory; None until it is finished."""
        path = directory / "all_results.json"
        return cls.load(path) if path.exists() else None

    @property
    def scores(self) -> dict[str, Any]:
        """The fields with `metrics`, such as "test", by name; without those that are None."""
        return {name: each for name, each in vars(self).items() if hasattr(each, "metrics")}

    @property
    def metrics(self) -> dict[str, float]:
        """All scores by name for trackers, such as "test_averaged_bleu", or "test_final_bleu" without an average."""
        model = "averaged" if self.training.is_average else "final"
        names = {"validation": f"eval_{model}", "test": f"test_{model}"}
        return {
            f"{names.get(name, name)}_{metric}": value
            for name, scores in self.scores.items()
            for metric, value in scores.metrics.items()
        }


@dataclass(frozen=True, kw_only=True)
class RunRecord(TrainingResults):
    """The `all_results.json` of `recipes/train_wmt.py`; the scores in the order of reports, which show their titles.

    Attributes:
        parent: The model that was fine-tuned; None if the training began with random weights.
        validation, test: Scores of the final model.
        validation_reverse, test_reverse: From target to source, if the model has both directions.
        validation_copy, test_copy: Scores of the sources taken as translations, a baseline; on validation only
            without a test set.
        test_parent, replay_test_parent: Scores of the parent.
        test_last_checkpoint: Scores of the last checkpoint, if the final model is an average.
        replay_test: Scores of the final model on another test set, such as the parent's.
        examples: Some sentences of the test set, from the worst by chrF to the best.
        robustness: Scores of the final model on part of the test set with small changes, and strings that it copies.
    """

    parent: ParentModel | None = None
    validation: Scores | None = field(default=None, metadata={"title": "validation, {final}"})
    validation_reverse: Scores | None = field(default=None, metadata={"title": "validation, {back}, {final}"})
    validation_copy: Scores | None = field(default=None, metadata={"title": "validation, a copy of the source"})
    test_copy: Scores | None = field(default=None, metadata={"title": "test, a copy of the source"})
    test_parent: Scores | None = field(default=None, metadata={"title": "test, parent"})
    test: Scores | None = field(default=None, metadata={"title": "test, {final}"})
    test_reverse: Scores | None = field(default=None, metadata={"title": "test, {back}, {final}"})
    test_last_checkpoint: Scores | None = field(default=None, metadata={"title": "test, last checkpoint"})
    replay_test_parent: Scores | None = field(default=None, metadata={"title": "replay test, parent"})
    replay_test: Scores | None = field(default=None, metadata={"title": "replay test, {final}"})
    examples: list[Example] | None = None
    robustness: Robustness | None = None

    @property
    def titled_scores(self) -> dict[str, Scores]:
        """The scores that are not None, by corpus and model, such as "test, averaged model"."""
        final = "averaged model" if self.training.is_average else "last step"
        back = f"{self.data.target_language} to {self.data.source_language}"
        return {
            each.metadata["title"].format(final=final, back=back): getattr(self, each.name)
            for each in fields(self)
            if each.name in self.scores
        }


@dataclass(frozen=True, kw_only=True)
class ScoredTestSet:
    """Description of a test set."""

    name: str
    lines: int
    references: int
    source_language: str
    target_language: str


@dataclass(frozen=True, kw_only=True)
class ScoreRecord(Record):
    """The `results.json` of `recipes/score.py`.

    Attributes:
        systems: Scores of one or two systems, by name, each by its best search.
        sweep: Scores of all searches, if there were several.
        paired_bootstrap: Comparison of two systems, by metric.
        confidence: Agreement of the first system's confidence with chrF, if requested.
        robustness: Scores of the first system under small changes of the sources, and strings that it copies, if
            requested.
    """

    run: Provenance
    test_set: ScoredTestSet
    systems: dict[str, Scores]
    sweep: list[Scores] | None = None
    paired_bootstrap: dict[str, PairedComparison] | None = None
    confidence: ConfidenceReport | None = None
    robustness: Robustness | None = None
