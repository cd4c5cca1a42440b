"""Options of the translation of lines: input, models and output."""

import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path

from transformers import PreTrainedConfig

from ..data.tables import read_table, table_kind
from ..data.text_files import COMPRESSED, decode_lines, read_lines
from ..engines.exported_model import engine_digest, is_engine_name, no_export
from ..model.languages_vaswani import Directions
from ..options.arguments import decisive_values, option, refuse_unused
from ..system.files import Json, require_new_file
from ..system.manifests import MODEL_FILES, matching_files_digest
from .decoding_arguments import GenerationArguments
from .ensemble import require_same_tokens
from .saved_model import SavedModel


@dataclass
class TranslationOptions(GenerationArguments):
    """Input, search and output of the translation of lines."""

    option_group = "translation"

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    input: str = option("-", "Text in UTF-8 or a table, also .gz, .bz2 or .xz, or - for standard input.")
    column: str | None = option(None, "Column of a table; by default the model's source language.")
    output: str = option("-", "File to write, or - for standard output.")
    target_language: str | None = option(
        None, "Language to translate into, of a model of both directions.", decides="translations"
    )
    split_sentences: bool = option(
        True,
        "Translate lines sentence by sentence; if false, or with scores or the best of the beam, each as one.",
        decides="translations",
    )
    return_scores: bool = option(
        False,
        "Write log-probabilities of each translation and of its words, into .jsonl, and the confidence; null where "
        "score.py --confidence has not measured it.",
        decides="translations",
    )
    return_alignment: bool = option(
        False, "Write these and the word alignment, in Pharaoh format, into .jsonl.", decides="translations"
    )
    engine: str | None = option(
        None,
        "What searches in place of the model: ctranslate2, ctranslate2:int8 or onnx, exported to on first use; or the "
        "directory of an export by export.py.",
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
            if not (is_engine_name(self.engine) or Path(self.engine).is_dir()):
                raise no_export(self.engine)
            advice = "an engine searches, in the precision of its export; leave out this option or --engine"
            refuse_unused(self, dict.fromkeys(("do_sample", "force_words", "precision"), advice))
        if not self.writes_json:
            advice = f"{self.output} has lines of text; name an output that ends in .jsonl"
            refuse_unused(self, dict.fromkeys(scores, advice))

    @property
    def writes_json(self) -> bool:
        """Whether each translation is written as JSON, with its source."""
        return table_kind(Path(self.output)) == "json"

    def require_output(self, overwrite: bool) -> None:
        """Raise a ValueError unless lines can be written to the output, a file."""
        path = Path(self.output)
        require_new_file("output", path, overwrite)
        if path.suffix in COMPRESSED or (table_kind(path) is not None and not self.writes_json):
            raise ValueError(f"output: {path} would hold lines of text; name a file that does not end in {path.suffix}")
        if path.exists() and Path(self.input).exists() and path.samefile(self.input):
            raise ValueError(f"output: {path} is the input too; name another file")

    def open_models(self) -> list[SavedModel]:
        """Check the model and the other models of the ensemble, without reading their weights.

        Raises:
            ValueError: The model does not translate into the language, or the tokens of the ensemble's models differ.
        """
        saved = self.open(self.model)
        Directions(saved.config).tag(None, self.target_language)  # refuses a language that is not the model's
        members = [self.open(name, "ensemble") for name in self.ensemble or ()]
        for member in members:
            require_same_tokens(saved.config, member.config, f"{member.place}:")
            if member.tokenizer.get_vocab() != saved.tokenizer.get_vocab():
                raise ValueError(
                    f"{member.place}: has another tokenizer than --model; train the models of an ensemble with the "
                    "same corpus, vocab_size and min_frequency, or with --tokenizer"
                )
        return [saved, *members]

    def lines(self, config: PreTrainedConfig) -> Iterator[str]:
        """The lines to translate, read lazily; in a table, each row has one, in the column of `config`'s language.

        Raises:
            ValueError, OSError: The file is missing or damaged, or a column is named for text.
        """
        path = Path(self.input)
        kind = None if self.input == "-" else table_kind(path)
        if kind is None and self.column is not None:
            raise ValueError(f"column: {path} is text, by its name; leave it out, or name a table such as .jsonl")
        if self.input == "-":
            return decode_lines(sys.stdin.buffer, Path("standard input"))
        path.stat()  # a missing file is an error now, before the model is loaded
        if kind is None:
            return read_lines(path)
        directions = Directions(config)
        source, _ = directions.languages(directions.tag(None, self.target_language))
        column = self.column or source or "source"
        rows = read_table(path, (column, column))
        return (text.replace("\n", " ") for text, _ in rows)

    def record(self, models: list[SavedModel]) -> dict[str, Json]:
        """Everything but the input that decides the output: options, and digests of models and engine."""
        files = ("generation_config.json", *MODEL_FILES)
        return {
            **decisive_values(self, "translations"),
            **(decisive_values(self, "samples") if self.do_sample else {}),
            "models": [matching_files_digest(each.directory, files) for each in models],
            "engine": self.engine if self.engine is None or is_engine_name(self.engine) else engine_digest(self.engine),
            "json": self.writes_json,
        }
