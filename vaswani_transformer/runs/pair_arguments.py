"""Options of recipes that read sentence pairs with a model for each direction."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedConfig

from ..data.corpora import load_parallel_corpus, resolve_languages
from ..decoding.decoding_arguments import DecodingArguments
from ..decoding.saved_model import SavedModel
from ..model.languages_vaswani import Directions
from ..options.arguments import option
from ..system.processes import main_process_first


def languages_to_score(
    configs: Sequence[PreTrainedConfig], source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Languages to translate from and into: `source` and `target`, or else the first model's; None if unknown.

    Raises:
        ValueError: A model does not translate between them, or has several directions and `target` is None.
    """
    if configs:
        directions = Directions(configs[0])
        default_source, default_target = directions.languages(directions.tag(source, target, is_required=True))
        source, target = source or default_source, target or default_target
    for config in configs:
        Directions(config).tag(source, target)
    return source, target


@dataclass(frozen=True)
class DirectedModel:
    """A saved model, and the direction in which it reads the pairs.

    Attributes:
        saved: The model.
        languages: Codes of the languages from and into which it translates.
        tag: The tag at the start of each source, for a model with several directions.
    """

    saved: SavedModel
    languages: tuple[str, str]
    tag: str | None


@dataclass
class PairArguments(DecodingArguments):
    """Sentence pairs, and models of both directions or of one."""

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    reverse_model: str | None = option(None, "A model of the opposite direction, or of both.")
    corpus: list[str] = option(MISSING, "The pairs, as for --train of train_wmt.py.")
    columns: list[str] | None = option(None, "Columns of source and target in tables.")
    source_language: str | None = option(None, "Code of the source language; by default the model's or the corpus'.")
    target_language: str | None = option(None, "Code of the target language; by default the model's or the corpus'.")
    output: str = option(MISSING, "Directory to create.")

    def require_output(self) -> None:
        """Make the output's folder; raise a FileExistsError if the output exists."""
        if Path(self.output).exists():
            raise FileExistsError(f"output: {self.output} exists already; name another")
        Path(self.output).absolute().parent.mkdir(parents=True, exist_ok=True)

    def open_models(self) -> list[DirectedModel]:
        """Open the model, and the reverse model if there is one, without reading their weights.

        Raises:
            ValueError: A model does not translate between the languages; or as from `resolve_languages`.
        """
        saved = self.open(self.model)
        named = languages_to_score([saved.config], self.source_language, self.target_language)
        languages = resolve_languages([self.corpus], *named)
        models = [DirectedModel(saved, languages, Directions(saved.config).tag(*languages))]
        if self.reverse_model is not None:
            saved, languages = self.open(self.reverse_model, "reverse_model"), languages[::-1]
            try:
                models.append(DirectedModel(saved, languages, Directions(saved.config).tag(*languages)))
            except ValueError as error:
                raise ValueError(f"reverse_model: {error}") from None
        return models

    def load_corpus(self, languages: tuple[str, str]) -> Dataset:
        """Load the pairs. Collective."""
        with main_process_first():
            return load_parallel_corpus(self.corpus, *languages, columns=self.columns)
