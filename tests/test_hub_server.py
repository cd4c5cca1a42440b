"""The Hub of the other tests answers the real huggingface_hub client as the Hub does."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hub_server import HubServer, Repository


CARD = "---\nlanguage: [en, de]\nlicense: mit\nlibrary_name: transformers\npipeline_tag: translation\n---\n# A model\n"
PREAMBLE = """
import json, sys, time
from huggingface_hub import CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.utils import get_session

time.sleep = lambda seconds: None  # the client waits up to 8 s between its attempts
folder, repo = sys.argv[1:]
api = HfApi()
said = {}

def refused(name, call, *args, **kwargs):
    try:
        said[name] = [[], f"returned {call(*args, **kwargs)}"]
    except Exception as error:
        said[name] = [[kind.__name__ for kind in type(error).__mro__], str(error)]
"""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    (model / "nested").mkdir(parents=True)
    (model / "README.md").write_text(CARD)
    (model / "config.json").write_text('{"model_type": "vaswani"}')
    (model / "nested" / "naïve file.txt").write_text("größer")
    (model / "model.safetensors").write_bytes(os.urandom(3_000_000))
    (model / "empty.bin").touch()
    return model


def run_client(hub: HubServer, folder: Path, code: str, repo: str = "user/model") -> dict[str, Any]:
    """What a process of its own puts into `said`, talking to the server through huggingface_hub."""
    program = PREAMBLE + dedent(code) + "\nprint(json.dumps(said))"
    environment = hub.environment(folder.parent / "home")
    command = [sys.executable, "-c", program, str(folder), repo]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def count_uploads(hub: HubServer) -> int:
    return sum(request.startswith("PUT /storage/") for request in hub.requests)


def test_pushed_folder_is_read_back(hub, folder):
    pushed = contents(folder)
    said = run_client(
        hub,
        folder,
        """
        api.create_repo(repo)
        refused("created again", api.create_repo, repo)
        api.create_repo(repo, exist_ok=True)
        said["first"] = api.upload_folder(repo_id=repo, folder_path=folder, commit_message="First").oid
        said["unchanged"] = api.upload_folder(repo_id=repo, folder_path=folder).oid
        said["snapshot"] = api.snapshot_download(repo)
        said["paths"] = sorted(api.list_repo_files(repo))
        said["root"] = sorted(entry.path for entry in api.list_repo_tree(repo))
        said["user"] = api.whoami()["name"]
        info = api.model_info(repo)
        said["info"] = [info.sha, info.pipeline_tag, info.library_name, info.tags]
        gone = [CommitOperationDelete("nested/"), CommitOperationDelete("config.json")]
        said["second"] = api.create_commit(repo, gone, commit_message="Second").oid
        before = api.hf_hub_download(repo, "config.json", revision=said["first"], cache_dir=f"{folder}-new-cache")
        said["old"] = open(before).read()
        refused("deleted", api.hf_hub_download, repo, "config.json")
        refused("folder", lambda: list(api.list_repo_tree(repo, "nested")))
        refused("revision", api.hf_hub_download, repo, "README.md", revision="v2")
        refused("repository", api.model_info, "user/other")
        """,
    )
    repository = hub.repositories["user/model"]
    assert contents(Path(said["snapshot"])) == pushed | {".gitattributes": repository.files[".gitattributes"]}
    assert said["paths"] == sorted([*pushed, ".gitattributes"])
    assert said["root"] == sorted({path.split("/")[0] for path in said["paths"]})
    assert said["unchanged"] == said["first"]
    assert said["user"] == "user"
    tags = ["transformers", "translation", "en", "de", "license:mit"]
    assert said["info"] == [said["first"], "translation", "transformers", tags]
    assert said["old"] == '{"model_type": "vaswani"}'
    assert sorted(repository.files) == [".gitattributes", "README.md", "empty.bin", "model.safetensors"]
    assert repository.commits[1:] == [(said["first"], "First"), (said["second"], "Second")]
    assert count_uploads(hub) == 1
    assert "409" in said["created again"][1]
    assert "EntryNotFoundError" in said["deleted"][0]
    assert "EntryNotFoundError" in said["folder"][0]
    assert "RevisionNotFoundError" in said["revision"][0]
    assert "RepositoryNotFoundError" in said["repository"][0]


def test_only_the_right_token_writes(hub, folder):
    said = run_client(
        hub,
        folder,
        """
        api.create_repo(repo)
        wrong, missing = HfApi(token="hf_wrong"), HfApi(token=False)
        refused("wrong: whoami", wrong.whoami)
        for name, api in (("wrong", wrong), ("missing", missing)):
            refused(f"{name}: create", api.create_repo, "user/new", exist_ok=True)
            refused(f"{name}: upload", api.upload_folder, repo_id=repo, folder_path=folder)
        """,
    )
    assert list(hub.repositories) == ["user/model"]
    assert len(hub.repositories["user/model"].commits) == 1
    for name, (kinds, message) in said.items():
        assert "HfHubHTTPError" in kinds, (name, message)
        assert "user token" in message if "whoami" in name else "401" in message, (name, message)
    assert "Invalid credentials in Authorization header" in said["wrong: create"][1]
    assert "Invalid username or password" in said["missing: create"][1]
    assert "RepositoryNotFoundError" in said["missing: upload"][0]
    assert "RepositoryNotFoundError" not in said["wrong: upload"][0]


def test_read_only_namespace_and_repository_are_forbidden(hub, folder):
    hub.read_only = {"theirs", "user/archive"}
    hub.repositories["user/archive"] = Repository("user/archive")
    hub.repositories["user/archive"].commit({".gitattributes": b""}, "initial commit")
    said = run_client(
        hub,
        folder,
        """
        refused("create", api.create_repo, "theirs/model", exist_ok=True)
        api.create_repo(repo, exist_ok=True)
        refused("upload", api.upload_folder, repo_id=repo, folder_path=folder)
        refused("commit", api.create_commit, repo, [CommitOperationDelete(".gitattributes")], commit_message="Delete")
        """,
        "user/archive",
    )
    assert [len(repository.commits) for repository in hub.repositories.values()] == [1]
    assert all("HfHubHTTPError" in kinds and "403 Forbidden" in message for kinds, message in said.values()), said
    assert 'under the namespace "theirs"' in said["create"][1]
    assert "preupload" in said["upload"][1]


def test_interrupted_upload_is_tried_again_and_given_up(hub, folder):
    push = """
        api.create_repo(repo, exist_ok=True)
        refused("push", api.upload_folder, repo_id=repo, folder_path=folder)
    """
    hub.drop_uploads = 2
    said = run_client(hub, folder, push, "user/patient")
    assert said["push"][0] == []
    assert hub.repositories["user/patient"].files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert count_uploads(hub) == 2 + 1
    hub.objects.clear()
    hub.drop_uploads = math.inf
    kinds, message = run_client(hub, folder, push, "user/impatient")["push"]
    assert "RuntimeError" in kinds
    assert message == "Error while uploading 'model.safetensors' to the Hub."
    assert list(hub.repositories["user/impatient"].files) == [".gitattributes"]
    assert count_uploads(hub) == 3 + 6


@pytest.mark.parametrize("status", [500, 503])
def test_failed_commit_is_not_tried_again(hub, folder, status):
    hub.fail_commits, hub.commit_error = 1, status
    said = run_client(
        hub,
        folder,
        """
        api.create_repo(repo)
        refused("failed", api.upload_folder, repo_id=repo, folder_path=folder)
        refused("again", api.upload_folder, repo_id=repo, folder_path=folder)
        """,
    )
    assert "HfHubHTTPError" in said["failed"][0]
    assert str(status) in said["failed"][1]
    assert said["again"][0] == []
    assert "model.safetensors" in hub.repositories["user/model"].files
    assert count_uploads(hub) == 1


BAD_CARDS = {
    "license: [1]": '"license[0]" must be a string',
    "license: Apache License 2.0": '"license" with value "Apache License 2.0" is not valid',
    "language: en-US": '"language" with value "en-US" is not valid',
    "language:": '"language" must be a string',
    "datasets: [WMT 14]": '"datasets[0]" with value "WMT 14" is not valid',
    "tags: {a: b}": '"tags" must be a string',
    "model-index: BLEU": '"model-index" must be an array',
    "model-index: [{name: m, results: [{metrics: []}]}]": '"model-index[0].results[0].task" is required',
    "license: [mit": "Failed to parse YAML metadata",
}


def test_cards_are_validated(hub, folder):
    (folder / "bad.json").write_text(json.dumps(list(BAD_CARDS)))
    said = run_client(
        hub,
        folder,
        """
        # huggingface_hub 1.x validates cards at huggingface.co, wherever else it goes.
        post = (session := get_session()).post
        session.post = lambda url, **kwargs: post(url.replace("https://huggingface.co", api.endpoint), **kwargs)

        ModelCard.load(f"{folder}/README.md").validate()
        for bad in json.load(open(f"{folder}/bad.json")):
            refused(bad, HfApi._validate_yaml, api, f"---\\n{bad}\\n---\\n")
        card = ModelCard("---\\nlanguage: English\\n---\\n")
        refused("validate", card.validate)
        api.create_repo(repo)
        refused("push", card.push_to_hub, repo)
        """,
    )
    kinds, message = said.pop("validate")
    assert "ValueError" in kinds
    assert '"language" with value "English"' in json.loads(message)["errors"][0]["message"]
    kinds, message = said.pop("push")
    assert "ValueError" in kinds
    for bad, (kinds, message) in said.items():
        assert "ValueError" in kinds, bad
        assert message.startswith("Invalid metadata in README.md")
        assert BAD_CARDS[bad] in message
    assert len(hub.repositories["user/model"].commits) == 1
