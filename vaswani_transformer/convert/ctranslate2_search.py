"""The search of CTranslate2 with an exported model; it imports no torch, which takes seconds."""

import json
import logging
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import ctranslate2

from ..io.files import read_json
from ..launch.processor import has_products_of
from ..model.search_options_vaswani import SearchOptions
from .length_batches import search_in_batches


@cache
def warn_of_cut_sums() -> None:
    """Warn once if CTranslate2 computes 8-bit weights badly on this processor, and name what is better."""
    # MKL adds products correctly. It supports int16, and oneDNN does not.
    by_mkl = "int16" in ctranslate2.get_supported_compute_types("cpu")
    if not by_mkl and not has_products_of("int8"):
        logging.getLogger(__name__).warning(
            "int8: this processor has neither VNNI nor AMX, so that CTranslate2 cuts sums of products, and more "
            'translations change; float32 is exact (--engine ctranslate2; an int8 export by compute_type="float32")'
        )


class CTranslate2Translator:
    """Searches with an exported model as `ctranslate2.Translator` does, by the options of its generation_config.

    Args:
        directory: The exported directory.
        options: For `ctranslate2.Translator`: `device` ("cpu", "cuda"), `compute_type`, `intra_threads` and others.

    Attributes:
        positions: Tokens of the longest sentence, the rows of the exported table of positions.
        rule: Keywords with which `generate` of our model searches by the same rules: a sentence stops once `num_beams`
            hypotheses are finished, and scores are log P / |Y|^alpha.
    """

    def __init__(self, directory: str | Path, **options: Any) -> None:
        directory = Path(directory)
        self.rule = {"early_stopping": True, "length_penalty_type": "transformers"}
        self._tokens = json.loads((directory / "shared_vocabulary.json").read_text(encoding="utf-8"))
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self.positions = cast(int, read_json(directory / "tokenizer_config.json")["model_max_length"])
        self.search = SearchOptions.from_fields(read_json(directory / "generation_config.json"), self.positions)
        self.engine = ctranslate2.Translator(str(directory), **options)
        if self.engine.device == "cpu" and self.engine.compute_type.startswith("int8"):
            warn_of_cut_sums()

    def hypotheses(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The best hypothesis of each source; sources and hypotheses are token ids with EOS."""
        return [ranked[0] for ranked in self.n_best(sources)]

    def n_best(self, sources: Sequence[Sequence[int]], search: SearchOptions | None = None) -> list[list[list[int]]]:
        """The best hypotheses of each source, the best first; by default by the export's generation_config."""
        return search_in_batches(sources, partial(self._translate, search or self.search))

    def _translate(self, search: SearchOptions, batch: list[Sequence[int]]) -> list[list[list[int]]]:
        """The best hypotheses of sources of one length."""
        results = self.engine.translate_batch(
            [[self._tokens[token] for token in source] for source in batch],
            beam_size=search.num_beams,
            num_hypotheses=search.num_return_sequences,
            length_penalty=search.length_penalty,
            max_decoding_length=search.limit.new_tokens(len(batch[0])),
            min_decoding_length=0,
            max_input_length=0,  # which would cut longer sources off
            return_end_token=True,
            use_vmap=True,  # if there is one
        )
        return [[[self._ids[token] for token in each] for each in result.hypotheses] for result in results]
