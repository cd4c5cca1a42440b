"""What goes to the Hub with a model."""

from .model_card import write_model_card
from .provenance import describe_run
from .push import prepare_repository, push_or_explain


__all__ = ["describe_run", "prepare_repository", "push_or_explain", "write_model_card"]
