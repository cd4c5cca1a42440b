"""Model card, provenance and upload of a model for the Hub."""

from .model_card import write_model_card
from .provenance import describe_run, published
from .push import prepare_repository, push_run, repository_of_training


__all__ = ["describe_run", "prepare_repository", "published", "push_run", "repository_of_training", "write_model_card"]
