"""Model cards of parsers: the metadata here, the text in `model_card.md.jinja`."""

from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from ..runs.model_card import corpus_name, training_section
from ..runs.records import RunData
from .paper_numbers import PAPER_PARSERS, PAPER_PARSING_SETTINGS
from .records import ParsingRecord
from .scoring import F1_DEFINITIONS


def write_parsing_card(path: str | Path, record: ParsingRecord, picture: str | None = "learning_curve.png") -> None:
    """Write the card of a parser as Markdown with the metadata that the Hub reads.

    Args:
        path: The file to write, README.md in the model's directory.
        record: Results of the run.
        picture: File name of the learning curve, in the card's directory.
    """
    language, others = record.data.source_language, record.others or []
    name = (record.run.repository or f"vaswani-{language}-parser").split("/")[-1]
    scores = {
        f"{split.replace('_', ' ')}, {parser.replace('_', '-')}": getattr(each, parser)
        for split, each in record.scores.items()
        for parser in ("free", "constrained", "right_branching")
    }
    tested, trees = record.test or record.validation, "test" if record.test else "validation"
    trained_on = _trained_on(record.data)
    card = ModelCard.from_template(
        ModelCardData(
            language=language,
            license=record.data.license,
            library_name="transformers",
            tags=["vaswani", "constituency-parsing"],
            datasets=record.data.datasets or None,
            model_name=name,
        ),
        template_path=str(Path(__file__).with_name("model_card.md.jinja")),
        title=name,
        language=language,
        scores=scores | {f"{trees}, {other.name}": other.scores for other in others},
        definitions=F1_DEFINITIONS,
        paper_parsers=PAPER_PARSERS,
        ours=tested and tested.constrained,
        trained_on=trained_on,
        trees=trees,
        others=others,
        repository=record.run.repository,
        curve=record.curve,
        training_section=training_section(
            record, picture, PAPER_PARSING_SETTINGS, "section 6.3 of the paper; code: its authors'", trained_on
        ),
    )
    card.save(path)


def _trained_on(data: RunData) -> str:
    """The gold trees, and the silver ones."""
    text, silver = corpus_name(data.train), data.others.get("silver")
    if copies := data.others.get("recombined_copies"):  # of a published record; no option makes them
        text += f" with {copies} recombined copies"
    if isinstance(silver, list):
        text += f", and silver trees of {corpus_name(silver)}"
    return text
