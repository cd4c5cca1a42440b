"""Model cards of parsers, with the paper's numbers (6.3): the metadata here, the text in `model_card.md.jinja`."""

from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from ..runs.model_card import corpus_name, training_section
from .scoring import F1_DEFINITIONS, ParsingRecord


# F1 on section 23 of the Wall Street Journal (Table 4): parser, training data, F1.
PAPER_PARSERS = [
    ("Vinyals & Kaiser et al. (2014)", "WSJ only", 88.3),
    ("Petrov et al. (2006)", "WSJ only", 90.4),
    ("Zhu et al. (2013)", "WSJ only", 90.4),
    ("Dyer et al. (2016)", "WSJ only", 91.7),
    ("Transformer, 4 layers, of the paper", "WSJ only", 91.3),
    ("Zhu et al. (2013)", "semi-supervised", 91.3),
    ("Huang & Harper (2009)", "semi-supervised", 91.3),
    ("McClosky et al. (2006)", "semi-supervised", 92.1),
    ("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    ("Transformer, 4 layers, of the paper", "semi-supervised", 92.7),
    ("Luong et al. (2015)", "multi-task", 93.0),
    ("Dyer et al. (2016)", "generative", 93.3),
]

# Hyper-parameters of parsing as a model card prints them (6.3); "code" marks values of the authors' code, where the
# paper is silent.
PAPER_PARSING_SETTINGS = {
    "encoder_layers": 4,
    "decoder_layers": 4,
    "d_model": 1024,
    "d_ff": "code: 2048 (semi-supervised: 4096)",
    "num_heads": "code: 8 (semi-supervised: 16)",
    "d_k": "code: 128 (semi-supervised: 64)",
    "d_v": "code: 128 (semi-supervised: 64)",
    "dropout": "code: 0.2 (semi-supervised: 0.1)",
    "attention_dropout": "code: 0.2 (semi-supervised: 0)",
    "label_smoothing": 0.1,
    "vocab_size": "16,000 (semi-supervised: 32,000)",
    "source_tokens": 25000,
    "target_tokens": 25000,
    "warmup_steps": "code: 16,000 (semi-supervised: 4,000)",
    "learning_rate_factor": "code: 0.5",
    "average_last": 5,
    "steps": "not stated",
    "num_beams": 21,
    "length_penalty": 0.3,
    "max_new_tokens_over_source": 300,
}


def write_parsing_card(path: str | Path, record: ParsingRecord, picture: str | None = "learning_curve.png") -> None:
    """Write the card of a parser as Markdown with the metadata that the Hub reads.

    `picture` is the file name of the learning curve, in the card's directory.
    """
    language = record.data.source_language
    name = (record.run.repository or f"vaswani-{language}-parser").split("/")[-1]
    scores = {
        f"{split.replace('_', ' ')}, {parser}": getattr(each, parser)
        for split, each in record.scores.items()
        for parser in ("free", "constrained")
    }
    tested, trees = record.test or record.validation, "test" if record.test else "validation"
    trained_on, silver = corpus_name(record.data.train), record.data.others.get("silver")
    if isinstance(silver, list):
        trained_on += f", and silver trees of {corpus_name(silver)}"
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
        scores=scores,
        definitions=F1_DEFINITIONS,
        paper_parsers=PAPER_PARSERS,
        ours=tested and tested.constrained,
        trained_on=trained_on,
        trees=trees,
        repository=record.run.repository,
        training_section=training_section(
            record, picture, PAPER_PARSING_SETTINGS, "section 6.3 of the paper; code: its authors'", trained_on
        ),
    )
    card.save(path)
