"""The embedded corpus: English and German sentences of a small grammar, for demonstrations and tests."""

from .corpus import phrasebook


__all__ = ["phrasebook"]
