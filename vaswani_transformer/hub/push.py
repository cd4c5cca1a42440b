"""Putting what a run has made on the Hub."""

from collections.abc import Callable
from typing import Any

from huggingface_hub import HfApi


def prepare_repository(repo_id: str, private: bool | None = None) -> str:
    """Create a model repository where there is none, and see to it that it can be written, before anything expensive.

    Args:
        repo_id: "user/name", or only the name, for the user who is logged in.
        private: Whether a new repository is private; by default as the user's account has it.

    Returns:
        Its full name.

    Raises:
        ValueError: There is no token, it is not valid, it may not write there, or the Hub cannot be reached.
    """
    api = HfApi()
    try:
        name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        api.auth_check(name, write=True)
    except Exception as error:  # also those of whichever HTTP library huggingface_hub uses
        raise ValueError(
            f"hub_model_id: cannot write to {repo_id} on the Hub ({_in_short(error)}); "
            f"log in with `hf auth login` and a token that may, or name another repository"
        ) from error
    return name


def push_or_explain(push: Callable[[], Any], repo_id: str, directory: str) -> None:
    """Run `push`, which uploads `directory` to `repo_id`.

    Raises:
        OSError: It has failed. The message says why, that nothing is lost, and how to push again.
    """
    try:
        push()
    except Exception as error:  # after a long run all that can be done is to say where its model lies
        raise OSError(
            f"{directory} is complete, but has not been pushed to {repo_id} ({_in_short(error)}); push it with "
            f'`hf upload {repo_id} {directory} . --exclude "checkpoint-*"`'
        ) from error


def _in_short(error: Exception) -> str:
    """The kind of an error and the last line of its message, where the Hub's servers say what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
