"""Model cards of trainings: the metadata here, the text in `*.md.jinja`."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Template

from ..data.overlap import describe_in_train
from ..model.languages_vaswani import language_name
from ..options.data import DataArguments
from ..options.training import ModelArguments, RecipeTrainingArguments
from .records import RunRecord, TrainingResults
from .verdict import judge


_FOLDER = Path(__file__).parent


def _as_text(value: object) -> str:
    """The value of an option as reports show it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower()
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


# The paper's values by option; a tuple if its models differ.
PAPER_VALUES = {
    each.name: each.metadata["paper"]
    for kind in (ModelArguments, DataArguments, RecipeTrainingArguments)
    for each in fields(kind)
    if "paper" in each.metadata
}


class Setting(NamedTuple):
    """An option that the paper states: its values in a run and in the paper as text, and whether they differ."""

    name: str
    value: str
    paper: str
    departs: bool


def compare_with_paper(
    values: Mapping[str, object], paper_values: Mapping[str, object] = PAPER_VALUES
) -> list[Setting]:
    """Compare the options of a run with the paper's, without those that neither uses, such as a cooldown."""
    settings = []
    for name, paper in paper_values.items():
        alternatives = paper if isinstance(paper, tuple) else (paper,)
        departs = name in values and values[name] not in alternatives
        if departs or values.get(name):
            text = " or ".join(map(_as_text, alternatives))
            settings.append(Setting(name, _as_text(values[name]), text, departs))
    return settings


def write_model_card(path: str | Path, record: RunRecord, picture: str | None = "learning_curve.png") -> None:
    """Write the card of a run as Markdown with the Hub's metadata; facts missing from the record are omitted.

    `picture` is the file name of the learning curve, in the card's directory.
    """
    data, examples = record.data, record.examples
    name = (record.run.repository or f"vaswani-{data.source_language}-{data.target_language}").split("/")[-1]
    metadata = ModelCardData(
        language=[data.source_language, data.target_language],
        license=data.license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vaswani", "translation"],
        datasets=data.datasets or None,
        metrics=["sacrebleu"] if record.scores else None,
        model_name=name,
        base_model=record.parent.name if record.parent and record.parent.is_on_hub else None,
        eval_results=_eval_results(record) or None,
    )
    card = ModelCard.from_template(
        metadata,
        template_path=str(_FOLDER / "model_card.md.jinja"),
        title=name,
        record=record,
        run=record.run,
        data=data,
        scores=record.titled_scores,
        test=record.test,
        source_name=_language(data.source_language),
        target_name=_language(data.target_language),
        example=repr(examples[len(examples) // 2].source if examples else "..."),
        corpus_name=corpus_name,
        in_cell=_in_cell,
        verdict=[each.text for each in judge(record)],
        training_section=training_section(record, picture),
    )
    card.save(path)


def training_section(
    record: TrainingResults,
    picture: str | None,
    paper_settings: Mapping[str, object] | None = None,
    paper: str = "the paper",
    corpus: str | None = None,
) -> str:
    """Section of any model's card on its training, as Markdown.

    Args:
        record: Results of the run.
        picture: File name of the learning curve, in the card's directory.
        paper_settings: The paper's values of options that differ from the values for translation.
        paper: Name of the paper that states the values.
        corpus: The training data; by default the files.
    """
    settings = compare_with_paper(_values(record), {**PAPER_VALUES, **(paper_settings or {})})
    in_train = record.data.in_train or {}
    template = Template((_FOLDER / "training.md.jinja").read_text(encoding="utf-8"))
    section = template.render(
        record=record,
        corpus=corpus or corpus_name(record.data.train),
        corpus_name=corpus_name,
        in_train=describe_in_train(
            {split: counts for split, counts in in_train.items() if counts["sources"] or counts["targets"]}
        ),
        departures=[each for each in settings if each.departs],
        equal=[each for each in settings if not each.departs],
        paper=paper,
        picture=picture,
    )
    return section.strip()


def _values(record: TrainingResults) -> dict[str, object]:
    """The options of a run by name, as its card shows them."""
    settings, model = record.settings, record.model
    values = {**record.data.others, **model.others, **vars(model), **settings.others, **vars(settings)}
    values["steps"] = record.training.steps
    if settings.lr_scheduler_type != "inverse_sqrt":
        values["learning_rate_factor"] = f"none: constant rate {settings.learning_rate:g}"
    if settings.lr_scheduler_type == "constant":
        values["warmup_steps"] = "none"
    elif record.training.warmup_steps not in (None, settings.warmup_steps):
        values["warmup_steps"] = f"{record.training.warmup_steps:,} of {settings.warmup_steps:,}"
    return values


def _eval_results(record: RunRecord) -> list[EvalResult]:
    """BLEU on the test set, for each direction of the model."""
    data, name = record.data, corpus_name(record.data.test or [])
    source, target = data.source_language, data.target_language
    scores = {f"{source}-{target}": record.test, f"{target}-{source}": record.test_reverse}
    is_on_hub = name in (data.datasets or [])
    return [
        EvalResult(
            task_type="translation",
            task_name=f"Translation {direction}",
            dataset_type=name,
            dataset_name=name,
            # The Hub merges results of one dataset and configuration.
            dataset_config=direction if record.test_reverse else data.dataset_config if is_on_hub else None,
            dataset_split="test" if is_on_hub else None,
            metric_type="sacrebleu",
            metric_name=f"sacreBLEU {split.bleu.signature}",
            metric_value=round(split.bleu.score, 2),
        )
        for direction, split in scores.items()
        if split is not None
    ]


def corpus_name(files: list[str]) -> str:
    """The files of a corpus, each with the folder that contains it, or the name of a dataset."""
    return " and ".join("/".join(Path(file).parts[-2:]) for file in files)


def _language(code: str) -> str:
    """English name and code of a language, such as "German (`de`)"; the code alone if its name is unknown."""
    name = language_name(code)
    return f"`{code}`" if name == code else f"{name} (`{code}`)"


def _in_cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return re.sub(r"([\\`*_\[\]<>|$~#&])", r"\\\1", " ".join(text.split()))
