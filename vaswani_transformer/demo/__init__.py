"""A page to try a model on, and the folder of a Space that shows it."""

from .space import write_space
from .translator import DemoTranslator, Limits, RefusedError


__all__ = ["DemoTranslator", "Limits", "RefusedError", "write_space"]
