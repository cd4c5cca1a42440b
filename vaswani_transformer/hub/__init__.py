"""What goes to the Hub with a model."""

from .model_card import write_model_card
from .provenance import describe_run


__all__ = ["describe_run", "write_model_card"]
