"""Model cards of trainings: the metadata here, the text in `*.md.jinja`."""

import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Template

from ..model.languages_vaswani import language_name
from ..paper.numbers import PAPER_PARSERS, PAPER_PARSING_SETTINGS, PAPER_SETTINGS
from ..parsing.scoring import F1_DEFINITIONS
from .records import ParsingRecord, RunData, RunRecord, SplitScores


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
        replay_test=_corpus(record.data.replay_test or []),
        alpha=record.settings.alpha,
        has_reverse=record.data.others.get("both_directions"),
        parent=record.parent,
        scores=record.titled_scores,
        test=record.test,
        chrf=next((split.chrf for split in record.scores.values() if split.chrf), None),
        examples=examples,
        in_cell=_in_cell,
        example=repr(examples[len(examples) // 2].source if examples else "..."),
        repository=record.run.repository,
        run=record.run,
        data=record.data,
        training_section=_training_section(record, picture),
    )
    card.save(path)


def write_parsing_card(path: str | Path, record: ParsingRecord, picture: str | None = "learning_curve.png") -> None:
    """Write the card of a parser as Markdown with the metadata that the Hub reads.

    Args:
        path: The file to write, README.md in the model's directory.
        record: What the run measured.
        picture: Name of the learning curve beside the card.

    Raises:
        ValueError: Two parsers have one name, or the same scores: a row was copied.
    """
    language = record.data.source_language
    rows = [
        (f"{split.replace('_', ' ')}, {parser.replace('_', '-')}", getattr(scores, parser))
        for split, scores in record.scores.items()
        for parser in ("free", "constrained", "right_branching")
    ]
    others = record.others or []
    tested, trees = record.test or record.validation, "test" if record.test else "validation"
    for name, scores in ((f"{trees}, {other.name}", other.scores) for other in others):
        for earlier, its_scores in rows:
            if name == earlier or scores == its_scores:
                raise ValueError(f"others: the rows {earlier!r} and {name!r} have the same name or scores; keep one")
        rows.append((name, scores))
    ours = [("this model, constrained", _trained_on(record.data), tested.constrained)] if tested else []
    ours += [(other.name, other.trained_on, other.scores) for other in others]
    card = ModelCard.from_template(
        ModelCardData(
            language=language,
            license=record.data.license,
            library_name="transformers",
            tags=["vaswani", "constituency-parsing"],
            datasets=record.data.datasets or None,
            model_name=(record.run.repository or f"vaswani-{language}-parser").split("/")[-1],
        ),
        template_path=str(_FOLDER / "parsing_card.md.jinja"),
        title=(record.run.repository or f"vaswani-{language}-parser").split("/")[-1],
        language=language,
        scores=rows,
        definitions=F1_DEFINITIONS,
        paper_parsers=PAPER_PARSERS,
        ours=ours,
        trees=trees,
        others=others,
        repository=record.run.repository,
        curve=record.curve,
        training_section=_training_section(record, picture),
    )
    card.save(path)


def _training_section(record: RunRecord | ParsingRecord, picture: str | None) -> str:
    """How the model was trained, for any task."""
    template = Template((_FOLDER / "training.md.jinja").read_text(encoding="utf-8"))
    section = template.render(
        corpus=_trained_on(record.data),
        name_of=_corpus,
        run=record.run,
        data=record.data,
        model=record.model,
        training=record.training,
        settings=_settings(record),
        paper="the paper" if isinstance(record, RunRecord) else "section 6.3 of the paper; code: its authors'",
        departures=record.settings.departures,
        precision=record.settings.precision,
        picture=picture,
        scientific=_scientific,
    )
    return section.strip()


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
    name = _corpus(data.test or [])
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


def _corpus(files: list[str]) -> str:
    """The files of a corpus, each with the folder that contains it, or the name of a dataset."""
    return " and ".join("/".join(Path(file).parts[-2:]) for file in files)


def _trained_on(data: RunData) -> str:
    """The corpus, and of a parser also the trees that are not gold."""
    text, silver = _corpus(data.train), data.others.get("silver")
    if copies := data.others.get("recombined_copies"):
        text += f" with {copies} recombined copies"
    if isinstance(silver, list):
        text += f", and silver trees of {_corpus(silver)}"
    return text


def _settings(record: RunRecord | ParsingRecord) -> list[tuple[str, str, str]]:
    """Each hyper-parameter that the paper states: name, value in the run, value in the paper."""
    paper = PAPER_SETTINGS if isinstance(record, RunRecord) else PAPER_PARSING_SETTINGS
    values = {**record.data.others, **record.model.others, **vars(record.model), **vars(record.settings)}
    values["steps"] = record.training.steps
    if (rate := record.settings.constant_learning_rate) is not None:
        values["learning_rate_factor"] = f"none: constant rate {rate:g}"
        if not record.settings.has_warmup:
            values["warmup_steps"] = values["learning_rate_factor"]
    return [(name, _grouped(values[name]), stated) for name, stated in paper.items()]


def _language(code: str) -> str:
    """English name and code of a language, such as "German (`de`)"; the code alone if its name is unknown."""
    name = language_name(code)
    return f"`{code}`" if name == code else f"{name} (`{code}`)"


def _in_cell(text: str) -> str:
    """Text as a cell of a table in Markdown shows it."""
    return re.sub(r"([\\`*_\[\]<>|$~#&])", r"\\\1", " ".join(text.split()))


def _grouped(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,g}" if isinstance(value, float) else str(value)


def _scientific(number: float) -> str:
    mantissa, exponent = f"{number:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"
