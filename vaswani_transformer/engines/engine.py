"""The interface of all engines."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ..model.search_options_vaswani import SearchOptions


class Engine(ABC):
    """An exported model that searches: `CTranslate2Translator`, `OnnxTranslator` or `MarianTranslator`.

    Attributes:
        rule: Keywords with which `generate` of our model searches by the engine's rules.
    """

    rule: Mapping[str, Any]

    def hypotheses(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The best hypothesis of each source; sources and hypotheses are token ids with EOS."""
        return [ranked[0] for ranked in self.n_best(sources)]

    @abstractmethod
    def n_best(self, sources: Sequence[Sequence[int]], search: SearchOptions | None = None) -> list[list[list[int]]]:
        """The best hypotheses of each source, the best first.

        Args:
            sources: Token ids of each source, EOS included.
            search: Beams, hypotheses, alpha and limit; by default as in the export's generation_config.
        """
