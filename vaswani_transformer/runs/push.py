"""Upload of a finished run to the Hub."""

import glob
import shlex
from pathlib import Path

from accelerate import PartialState
from huggingface_hub import HfApi
from transformers import TrainingArguments

from ..io.files import MANIFEST_NAME, MODEL_FILES


# What a run publishes of its directory. Other files may reveal the user's machine, or hold tokens.
PUSHED = (
    *MODEL_FILES,
    MANIFEST_NAME,
    "generation_config.json",
    "*_vaswani.py",
    "README.md",
    "all_results.json",
    "bleu_by_source_length.png",
    "learning_curve.png",
    *(f"*.{corpus}*.txt" for corpus in ("validation", "test", "replay_test")),  # such as translations.test.txt
)


def prepare_repository(repo_id: str, private: bool | None = None) -> str:
    """Create a model repository unless it exists, and check that it can be written.

    Args:
        repo_id: "user/name"; or only the name, for the user who is logged in.
        private: Whether a new repository is private; the default is the account's.

    Returns:
        The full name of the repository.

    Raises:
        ValueError: There is no token, it is invalid or lacks permission, or the Hub cannot be reached.
    """
    api = HfApi()
    try:
        name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        api.auth_check(name, write=True)
    except Exception as error:  # huggingface_hub's HTTP library, and its errors, change
        raise ValueError(
            f"hub_model_id: cannot write to {repo_id} on the Hub ({_summary(error)}); "
            f"log in with `hf auth login` and a token that can, or name another repository"
        ) from error
    return name


def repository_of_training(args: TrainingArguments) -> str | None:
    """Prepare the repository that a training pushes to; returns its full name, None without a push."""
    if not args.push_to_hub:
        return None
    name = args.hub_model_id or Path(args.output_dir).resolve().name
    return prepare_repository(name, args.hub_private_repo) if PartialState().is_main_process else name


def push_run(repo_id: str, directory: str, revision: str | None = None) -> None:
    """Upload what a finished run has written: its model with code and tokenizer, card, results, translations, plots.

    Files in directories below, links, and files of other names are not pushed.

    Args:
        repo_id: Full name of the repository.
        directory: The output directory.
        revision: Branch to push to; by default the main one.

    Raises:
        OSError: The upload failed. The message says why, that nothing is lost, and how to push again.
    """
    try:
        HfApi().upload_folder(
            repo_id=repo_id,
            folder_path=directory,
            commit_message="End of training",
            allow_patterns=list(PUSHED),
            ignore_patterns=_not_pushed(directory),
            revision=revision,
        )
    except Exception as error:  # the run may have taken days: say where its model is
        raise OSError(
            f"{directory} is complete, but was not pushed to {repo_id} ({_summary(error)}); push it with "
            f"`{shlex.join(_command_to_push(repo_id, directory, revision))}`"
        ) from error


def _command_to_push(repo_id: str, directory: str, revision: str | None) -> list[str]:
    patterns = {"--include": PUSHED, "--exclude": _not_pushed(directory)}
    options = [word for option, values in patterns.items() for value in values for word in (option, value)]
    return ["hf", "upload", repo_id, directory, ".", *(["--revision", revision] if revision else []), *options]


def _not_pushed(directory: str) -> list[str]:
    return ["*/*", *(glob.escape(path.name) for path in Path(directory).iterdir() if path.is_symlink())]


def _summary(error: Exception) -> str:
    """The type of an error and the last line of its message, where the Hub's servers say what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
