"""An exported folder on the Hugging Face hub, by huggingface_hub's own upload."""

from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.storage.retry import reason_of


def check_push(repo: str) -> None:
    """Raise RunError for a bad name or without a token: what is known before anything is sent."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise RunError(f"'{repo}' is not the name of a repository: {error}") from error
    if get_token() is None:
        raise RunError(
            f"'{repo}': there is no token for the Hugging Face hub; "
            "log in with `hf auth login`, or set HF_TOKEN"
        )


def push(folder: Path, repo: str) -> str:
    """Upload the folder to a model repository, which is made, private, if it is not there yet.

    Args:
        folder: of an exported model; it stays as it is.
        repo: name of the repository on the hub.

    Returns:
        The address of the commit.

    Raises:
        RunError: where the hub refuses or is not reached.
    """
    from huggingface_hub import HfApi

    check_push(repo)
    api = HfApi()
    try:
        made = api.create_repo(repo, private=True, exist_ok=True)  # knows whose a bare name is
        commit = api.upload_folder(repo_id=made.repo_id, folder_path=folder)
    except (OSError, ValueError) as error:  # the hub's errors, and those of the network
        reason = reason_of(error)
        raise RunError(f"'{folder}' is written, but not pushed to '{repo}' ({reason})") from error
    return str(commit.commit_url)
