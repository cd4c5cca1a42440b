"""`pipeline("translation")` with the package: engines and forced words."""

from pathlib import Path
from typing import Any

from ..engines.exported_model import ExportedModel
from ..model import pipeline_vaswani
from ..model.translation_vaswani import Translation
from .phrases import with_forced_words


class VaswaniTranslationPipeline(pipeline_vaswani.VaswaniTranslationPipeline):
    """The pipeline of a model's own code, which also takes an engine and forced words.

    Args:
        engine: The engine that searches in place of the model: "ctranslate2", "ctranslate2:int8" or "onnx", to which
            the model is exported on first use, or the directory of an export. The model scores and aligns. For the
            constructor only.
        force_words: Words and phrases that each translation contains as whole words, such as
            `["Hund", ["alte Mann", "ältere Mann"]]`; one of alternatives suffices. They need beams.

    Raises:
        ValueError: The engine cannot express the model, or lacks an option; or the words are not lists of text.
        ImportError: The engine is not installed.
    """

    def __init__(self, *args: Any, engine: str | Path | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if engine is not None:
            self.engine = ExportedModel(engine, self.model, self.tokenizer)

    def _forward(
        self, model_inputs: dict[str, list[str]], *args: Any, **options: Any
    ) -> dict[str, list[list[Translation]]]:
        with_engine = {**options, "engine": self.engine}
        return super()._forward(model_inputs, *args, **with_forced_words(with_engine, self.tokenizer))
