"""Upload of a finished run to the Hub."""

from huggingface_hub import HfApi

from ..system.manifests import MODEL_FILES


# The files that a run publishes. Others may reveal the user's machine, or hold tokens. The manifest is not published:
# pushing part of a model again would make it stale, and the Hub's client verifies what it downloads.
PUSHED = (
    *MODEL_FILES,
    "generation_config.json",
    "*_vaswani.py",
    "README.md",
    "all_results.json",
    "bleu_by_source_length.png",
    "learning_curve.png",
    "robustness.png",
    *(f"*.{corpus}*.txt" for corpus in ("validation", "test", "replay_test")),  # such as translations.test.txt
)


def prepare_repository(repo_id: str, private: bool | None = None) -> str:
    """Create a model repository unless it exists, check that it can be written, and return its full name.

    The name alone, without "user/", is completed for the logged-in user. By default the account decides whether a new
    repository is private.

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


def push_run(repo_id: str, directory: str, revision: str | None = None) -> None:
    """Upload the files of a finished run: model with code and tokenizer, card, results, translations, plots.

    Files in subdirectories, and files with other names, are not pushed. The default branch is the main one.

    Raises:
        OSError: The upload failed. The message says why, that nothing is lost, and how to push again.
    """
    try:
        HfApi().upload_folder(
            repo_id=repo_id,
            folder_path=directory,
            commit_message="End of training",
            allow_patterns=list(PUSHED),
            ignore_patterns=["*/*"],
            revision=revision,
        )
    except Exception as error:  # the run may have taken days: say where its model is
        raise OSError(
            f"{directory} is complete, but was not pushed to {repo_id} ({_summary(error)}); repeat the command with "
            f"--resume to push it"
        ) from error


def _summary(error: Exception) -> str:
    """The type of an error and the last line of its message, where the Hub's servers say what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
