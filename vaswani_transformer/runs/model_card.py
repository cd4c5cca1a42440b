"""Model cards of trainings: the metadata here, the text in `*.md.jinja`."""

import re
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Template

from ..model.languages_vaswani import language_name
from .records import RunData, RunRecord, SplitScores, TrainingResults
from .run_arguments import PAPER_VALUES, as_text


_FOLDER = Path(__file__).parent


def write_model_card(path: str | Path, record: RunRecord, picture: str | None = "learning_curve.png") -> None:
    """Write the card of a run as Markdown with the Hub's metadata.

    Args:
        path: The file to write, README.md in the model's directory.
        record: Results of the run. The card omits what they lack.
        picture: File name of the learning curve, in the card's directory.
    """
    metadata, examples = _metadata(record), record.examples or []
    source, target = record.data.source_language, record.data.target_language
    card = ModelCard.from_template(
        metadata,
        template_path=str(_FOLDER / "model_card.md.jinja"),
        title=metadata.model_name,
        source=source,
        target=target,
        source_name=_language(source),
        target_name=_language(target),
        parameters=record.model.parameters,
        longest_source=record.model.others.get("longest_source"),
        megabytes=4 * record.model.parameters / 1e6,
        replay_test=corpus_name(record.data.replay_test or []),
        alpha=record.settings.alpha,
        has_reverse=record.data.others.get("both_directions"),
        parent=record.parent,
        scores=record.titled_scores,
        test=record.test,
        examples=examples,
        in_cell=_in_cell,
        example=repr(examples[len(examples) // 2].source if examples else "..."),
        repository=record.run.repository,
        run=record.run,
        data=record.data,
        training_section=training_section(record, picture),
    )
    card.save(path)


def training_section(
    record: TrainingResults,
    picture: str | None,
    paper_settings: Mapping[str, str] | None = None,
    paper: str = "the paper",
    corpus: str | None = None,
) -> str:
    """Section of any model's card on its training, as Markdown.

    Args:
        record: Results of the run.
        picture: File name of the learning curve, in the card's directory.
        paper_settings: The paper's values of options, where they are others than those of translation.
        paper: Name of the paper that states the values.
        corpus: What the model was trained on; by default the files.
    """
    template = Template((_FOLDER / "training.md.jinja").read_text(encoding="utf-8"))
    section = template.render(
        corpus=corpus or corpus_name(record.data.train),
        name_of=corpus_name,
        run=record.run,
        data=record.data,
        model=record.model,
        training=record.training,
        settings=_settings(record, paper_settings or {}),
        paper=paper,
        precision=record.settings.precision,
        picture=picture,
        scientific=_scientific,
    )
    return section.strip()


def _settings(record: TrainingResults, paper_settings: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Each hyper-parameter that the paper states: name, value in the run, value in the paper.

    What neither uses, such as a cooldown, is left out.
    """
    settings, rows = record.settings, []
    values = {**record.data.others, **record.model.others, **vars(record.model), **settings.others, **vars(settings)}
    values["steps"] = record.training.steps
    if settings.lr_scheduler_type != "inverse_sqrt":
        values["learning_rate_factor"] = f"none: constant rate {settings.learning_rate:g}"
    if settings.lr_scheduler_type == "constant":
        values["warmup_steps"] = "none"
    for name in {**PAPER_VALUES, **paper_settings}:
        stated = paper_settings.get(name) or as_text(*PAPER_VALUES[name])
        if values[name] or any(PAPER_VALUES.get(name, (stated,))):
            rows.append((name, as_text(values[name]), stated))
    return rows


def _metadata(record: RunRecord) -> ModelCardData:
    source, target = record.data.source_language, record.data.target_language
    return ModelCardData(
        language=[source, target],
        license=record.data.license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vaswani", "translation"],
        datasets=record.data.datasets or None,
        metrics=["sacrebleu"] if record.scores else None,
        model_name=(record.run.repository or f"vaswani-{source}-{target}").split("/")[-1],
        base_model=record.parent.name if record.parent and record.parent.is_on_hub else None,
        eval_results=_eval_results(record) or None,
    )


def _eval_results(record: RunRecord) -> list[EvalResult]:
    """BLEU on the test set, for each direction of the model."""
    source, target = record.data.source_language, record.data.target_language
    directions = ((f"{source}-{target}", record.test), (f"{target}-{source}", record.test_reverse))
    results = [_eval_result(record.data, direction, split) for direction, split in directions if split]
    if len(results) > 1:  # the Hub joins results of one dataset and configuration
        for result, (direction, _) in zip(results, directions, strict=True):
            result.dataset_config = direction
    return results


def _eval_result(data: RunData, direction: str, split: SplitScores) -> EvalResult:
    name = corpus_name(data.test or [])
    from_hub = name in (data.datasets or [])
    return EvalResult(
        task_type="translation",
        task_name=f"Translation {direction}",
        dataset_type=name,
        dataset_name=name,
        dataset_config=data.dataset_config if from_hub else None,
        dataset_split="test" if from_hub else None,
        metric_type="sacrebleu",
        metric_name=f"sacreBLEU {split.bleu.signature}",
        metric_value=round(split.bleu.score, 2),
    )


def corpus_name(files: list[str]) -> str:
    """The files of a corpus, each with the folder that contains it, or the name of a dataset."""
    return " and ".join("/".join(Path(file).parts[-2:]) for file in files)


def _language(code: str) -> str:
    """English name and code of a language, such as "German (`de`)"; the code alone if its name is unknown."""
    name = language_name(code)
    return f"`{code}`" if name == code else f"{name} (`{code}`)"


def _in_cell(text: str) -> str:
    """Text as a cell of a table in Markdown shows it."""
    return re.sub(r"([\\`*_\[\]<>|$~#&])", r"\\\1", " ".join(text.split()))


def _scientific(number: float) -> str:
    mantissa, exponent = f"{number:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"
