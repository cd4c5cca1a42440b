"""Options of the recipes that decode with a saved model: batches, precision, search, input and output."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from .arguments import ALPHA, BEAMS, COUNT, POSITIVE, SEED, Precision, option, refuse_unused


# Options with the names of keywords of `generate`.
_GENERATE = ("num_beams", "length_penalty", "max_new_tokens", "num_return_sequences", "temperature", "force_words")


@dataclass
class DecodingArguments:
    """Options of every recipe that decodes with a saved model."""

    option_group = "decoding"

    tokens_per_batch: int = option(
        4096,
        "Source tokens of a batch, padding included; its beams together generate at most 16 times as many.",
        COUNT,
        decides="samples",  # each step samples for all rows of a batch
    )
    precision: Precision = option(
        "auto",
        "Dtype of the model. 'auto' is that of the saved weights; for a file of 2,000 lines or more, translate.py "
        "measures whether bf16, or on a GPU fp16, is faster by 15 percent.",
        decides="translations",
    )
    timeout_minutes: float = option(10.0, "Minutes that a process waits for the others before all end.", POSITIVE)
    trust_remote_code: bool = option(False, "Run code that comes with a model; only if you trust its author.")


@dataclass
class SearchArguments:
    """Options of beam search (6.1)."""

    option_group = "search"

    num_beams: int | None = option(
        None, "Beams (6.1); by default the model's generation_config.", BEAMS, decides="translations"
    )
    length_penalty: float | None = option(
        None, "Alpha of 6.1; by default the model's generation_config.", ALPHA, decides="translations"
    )

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Keywords for `generate`; the model's generation_config decides missing ones."""
        return {name: value for name, value in vars(self).items() if name in _GENERATE and value is not None}


@dataclass
class ShownSearchArguments(SearchArguments):
    """Options of the recipes that show the beam search of a translation model of this package."""

    model: str = option(MISSING, "Directory of a saved model of this package, or its name on the Hub.")
    target_language: str | None = option(None, "Language to translate into, of a model of both directions.")


@dataclass
class GenerationArguments(DecodingArguments, SearchArguments):
    """Options of `generate`: beam search (6.1) or sampling, and the number of hypotheses."""

    option_group = "search"

    max_new_tokens: int | None = option(
        None, "Longest translation; by default the model's generation_config.", COUNT, decides="translations"
    )
    force_words: list[str] | None = option(
        None, "Words and phrases that each translation contains, as whole words.", decides="translations"
    )
    num_return_sequences: int = option(
        1, "Translations of each line: the best of the beam, or samples.", BEAMS, decides="translations"
    )
    do_sample: bool = option(
        False, "Draw each token from the model's distribution, instead of searching.", decides="translations"
    )
    top_k: int | None = option(
        None, "Sample from the k most probable tokens only; by default from all.", COUNT, decides="samples"
    )
    temperature: float | None = option(
        None, "Divides the logits before sampling; 1 by default.", POSITIVE, decides="samples"
    )
    seed: int = option(0, "Seed of sampling.", SEED, decides="samples")

    def __post_init__(self) -> None:
        if self.do_sample:
            advice = "sampling does not search; leave out this option or --do_sample"
            refuse_unused(self, dict.fromkeys(("num_beams", "length_penalty", "force_words"), advice))
        else:
            refuse_unused(self, dict.fromkeys(("top_k", "temperature"), "it is for sampling; give --do_sample, too"))

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Keywords for `generate`."""
        kwargs = super().generate_kwargs
        if self.do_sample:  # 0 means all tokens in transformers, None means 50
            kwargs |= {"do_sample": True, "num_beams": 1, "top_k": self.top_k or 0}
        return kwargs


@dataclass
class TranslationArguments(GenerationArguments):
    """Input, search and output of the translation of lines."""

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    input: str = option("-", "Text in UTF-8 or a table, also .gz, .bz2, .xz or .zst, or - for standard input.")
    column: str | None = option(None, "Column of a table; by default the model's source language.")
    output: str = option("-", "File to write, or - for standard output.")
    target_language: str | None = option(
        None, "Language to translate into, of a model of both directions.", decides="translations"
    )
    split_sentences: bool = option(
        True,
        "Split each line into sentences and translate them separately. Ignored with --return_scores or several "
        "hypotheses, where each line is translated whole.",
        decides="translations",
    )
    return_scores: bool = option(
        False,
        "Add to each line of the .jsonl output the log-probability of the translation and of each word, and a "
        "confidence, which is null outside the range that score.py --confidence measured.",
        decides="translations",
    )
    return_alignment: bool = option(
        False, "Write scores and word alignments (Pharaoh format) to .jsonl.", decides="translations"
    )
    engine: str | None = option(
        None,
        "Engine that searches in place of the model: ctranslate2, ctranslate2:int8 or onnx (exports on first use); "
        "or the directory of an export by export.py.",
    )
    ensemble: list[str] | None = option(
        None, "More saved models with the same tokenizer: the search follows the mean of all models' probabilities."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        scores = ("return_scores", "return_alignment")
        if self.ensemble is not None:
            advice = "it takes one model; leave out this option or --ensemble"
            refuse_unused(self, dict.fromkeys(("engine", "do_sample", "force_words"), advice))
        if self.engine is not None:
            advice = "an engine searches, in the precision of its export; leave out this option or --engine"
            refuse_unused(self, dict.fromkeys(("do_sample", "force_words", "precision"), advice))
        if not self.writes_json:
            advice = f"{self.output} has lines of text; name an output that ends in .jsonl"
            refuse_unused(self, dict.fromkeys(scores, advice))

    @property
    def writes_json(self) -> bool:
        """Whether each translation is written as JSON, with its source."""
        return Path(self.output).suffix.lower() in (".jsonl", ".json", ".ndjson")
