"""A Hub on the loopback: enough of its protocol for huggingface_hub 1.x and 2.x to push models and read them back.

It knows models on the branch `main`; uploads go through LFS, not Xet. The client reads its settings when it is
imported, so what talks to this server runs in a process of its own.
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from helpers import run_python
from huggingface_hub import ModelCard
from zygote import LIBRARIES, Zygote


TOKEN = "hf_right"
USER = "user"
LFS_SUFFIXES = (".png", ".safetensors")


class Reply(NamedTuple):
    body: Any
    headers: Mapping[str, str] = {}
    status: int = 200


class RefusalError(Exception):
    """An error as the Hub words it: JSON for people, headers for huggingface_hub."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.reply = Reply({"error": message}, headers, status)


class Request(NamedTuple):
    token: str | None
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def file_oid(path: str, content: bytes) -> str:
    """What the client compares its own file with, and the file's ETag."""
    if path.endswith(LFS_SUFFIXES):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """The files on `main`, and the hash of their commit."""

    name: str
    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    sha: str = ""

    def __post_init__(self) -> None:
        self.commit({".gitattributes": b"", **self.files})

    def commit(self, files: dict[str, bytes]) -> str:
        state = [self.name, self.sha, sorted((path, file_oid(path, content)) for path, content in files.items())]
        self.sha = hashlib.sha1(json.dumps(state).encode()).hexdigest()
        self.files = files
        return self.sha

    def info(self) -> dict[str, Any]:
        card = ModelCard(self.files.get("README.md", b"").decode(), ignore_metadata_errors=True).data.to_dict()
        return {
            "id": self.name,
            "sha": self.sha,
            "private": self.private,
            "siblings": [{"rfilename": path} for path in sorted(self.files)],
            "cardData": card,
            **{key: card[key] for key in ("pipeline_tag", "library_name", "tags") if key in card},
        }

    def tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": path, "oid": file_oid(path, content), "size": len(content)}
            for path, content in sorted(self.files.items())
        ]


class HubServer:
    """A Hub to push to. It writes for the token `hf_right` only, and misbehaves as its attributes say.

    Args:
        home: Where its clients keep what they have loaded from it.

    Attributes:
        repositories: By "namespace/name"; a new one holds `.gitattributes`.
        read_only: Namespaces and repositories that answer 403 to writing.
        drop_uploads: Whether LFS uploads are cut off halfway.
        fail_commits: Whether commits are answered with 503.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.read_only: set[str] = set()
        self.drop_uploads = False
        self.fail_commits = False
        self._lock = threading.RLock()

    def __enter__(self) -> "HubServer":
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self._zygote = Zygote(self.environment(None), LIBRARIES)
        return self

    def __exit__(self, *exception: object) -> None:
        self._zygote.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def environment(self, token: str | None = TOKEN) -> dict[str, str]:
        """The environment of a process that knows no other Hub than this one; without a token if it is None."""
        others = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        settings = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self._home),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        settings |= {f"HF_HUB_DISABLE_{name}": "1" for name in ("XET", "TELEMETRY", "PROGRESS_BARS")}
        return kept | settings | ({"HF_TOKEN": token} if token is not None else {})

    def run(self, program: str | Path, *arguments: object, folder: Path, token: str | None = TOKEN) -> CompletedProcess:
        """Run a program with this Hub, in a fork of a process that has imported the libraries but not the package.

        Args:
            program: A script, or the text of one, which is then written into `folder`.
            arguments: Its arguments.
            folder: Working directory.
            token: The user's token, or None where nobody is logged in.
        """
        if isinstance(program, str):
            text, program = program, folder / "program.py"
            program.write_text(text, encoding="utf-8")
        words = [program, *map(str, arguments)]
        return run_python(words, environment=self.environment(token), folder=folder, zygote=self._zygote)

    def answer(self, method: str, path: str, request: Request) -> Reply:
        """Like the Hub, refuses a wrong token everywhere, and no token only where one is needed."""
        try:
            if request.token not in (None, TOKEN):
                raise RefusalError(401, "Invalid credentials in Authorization header")
            for methods, pattern, handler, guarded in ROUTES:
                match = re.fullmatch(pattern, path)
                if match and method in methods.split():
                    if guarded and request.token is None:
                        raise RefusalError(401, "Invalid username or password.")
                    with self._lock:
                        return handler(self, request, **{name: unquote(it) for name, it in match.groupdict("").items()})
            raise RefusalError(404, "Sorry, we can't find the page you are looking for.")
        except RefusalError as refusal:
            return refusal.reply

    def find(self, repo: str) -> Repository:
        if repo not in self.repositories:
            raise RefusalError(404, "Repository not found", "RepoNotFound")
        return self.repositories[repo]

    def writable(self, repo: str) -> Repository:
        found = self.find(repo)
        if self.read_only & {repo, repo.split("/")[0]}:
            raise RefusalError(403, "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")
        return found


def whoami(hub: HubServer, request: Request) -> Reply:
    access = {"type": "access_token", "accessToken": {"displayName": "tests", "role": "write"}}
    return Reply({"type": "user", "id": "1", "name": USER, "fullname": USER, "orgs": [], "auth": access})


def validate_yaml(hub: HubServer, request: Request) -> Reply:
    """Only that there is metadata: the Hub's rules are its own."""
    ModelCard(request.json()["content"])
    return Reply({"errors": [], "warnings": []})


def create(hub: HubServer, request: Request) -> Reply:
    wanted = request.json()
    namespace = wanted.get("organization") or USER
    repo = f"{namespace}/{wanted['name']}"
    if namespace in hub.read_only:
        raise RefusalError(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
    reply = {"url": f"{hub.url}/{repo}", "name": repo, "id": repo}
    if repo in hub.repositories:
        return Reply({"error": "You already created this model repo", **reply}, status=409)
    private = wanted.get("private") or wanted.get("visibility") == "private"
    hub.repositories[repo] = Repository(repo, bool(private))
    return Reply(reply)


def model_info(hub: HubServer, request: Request, repo: str, revision: str = "") -> Reply:
    return Reply(hub.find(repo).info())


def auth_check(hub: HubServer, request: Request, repo: str) -> Reply:
    hub.writable(repo)
    return Reply({})


def tree(hub: HubServer, request: Request, repo: str, path: str) -> Reply:
    if path:
        raise RefusalError(404, f"{path} does not exist", "EntryNotFound")
    return Reply(hub.find(repo).tree())


def resolve(hub: HubServer, request: Request, repo: str, path: str) -> Reply:
    repository = hub.find(repo)
    # By the commit the client's cache also remembers that a file does not exist.
    headers = {"X-Repo-Commit": repository.sha}
    if path not in repository.files:
        refusal = RefusalError(404, "Entry not found", "EntryNotFound").reply
        return refusal._replace(headers={**refusal.headers, **headers})
    content = repository.files[path]
    headers |= {"ETag": f'"{file_oid(path, content)}"', "Content-Type": "application/octet-stream"}
    return Reply(content, headers)


def preupload(hub: HubServer, request: Request, repo: str) -> Reply:
    files = hub.writable(repo).files
    answers = []
    for new in request.json()["files"]:
        mode = "lfs" if new["path"].endswith(LFS_SUFFIXES) else "regular"
        answer = {"path": new["path"], "uploadMode": mode, "shouldIgnore": False}
        if new["path"] in files:
            answer["oid"] = file_oid(new["path"], files[new["path"]])
        answers.append(answer)
    return Reply({"files": answers})


def lfs_batch(hub: HubServer, request: Request, repo: str) -> Reply:
    hub.writable(repo)
    objects = [{"oid": wanted["oid"], "size": wanted["size"]} for wanted in request.json()["objects"]]
    for wanted in objects:
        if wanted["oid"] not in hub.objects:
            wanted["actions"] = {"upload": {"href": f"{hub.url}/storage/{wanted['oid']}"}}
    return Reply({"transfer": "basic", "objects": objects})


def lfs_upload(hub: HubServer, request: Request, oid: str) -> Reply:
    if hashlib.sha256(request.body).hexdigest() != oid:
        raise RefusalError(400, "The content does not have the hash that was announced")
    hub.objects[oid] = request.body
    return Reply(b"")


def commit(hub: HubServer, request: Request, repo: str) -> Reply:
    repository = hub.writable(repo)
    if hub.fail_commits:
        raise RefusalError(503, "Internal Error - We're working hard to fix this as soon as possible!")
    files = dict(repository.files)
    for operation in map(json.loads, request.body.splitlines()):
        kind, value = operation["key"], operation["value"]
        if kind == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif kind == "lfsFile":
            files[value["path"]] = hub.objects[value["oid"]]
    sha = repository.commit(files)
    return Reply({"success": True, "commitOid": sha, "commitUrl": f"{hub.url}/{repo}/commit/{sha}", "hookOutput": ""})


REPO = "(?P<repo>[^/]+/[^/]+)"
# Methods, path, function, whether a token is needed. Uploads need none: on the Hub their addresses are signed.
ROUTES: tuple[tuple[str, str, Callable[..., Reply], bool], ...] = (
    ("GET", "/api/whoami-v2", whoami, True),
    ("POST", "/api/validate-yaml", validate_yaml, False),
    ("POST", "/api/repos/create", create, True),
    ("GET", f"/api/models/{REPO}(/revision/[^/]+)?", model_info, False),
    ("GET", f"/api/models/{REPO}/auth-check/write", auth_check, True),
    ("GET", f"/api/models/{REPO}/tree/[^/]+(?:/(?P<path>.+))?", tree, False),
    ("POST", f"/api/models/{REPO}/preupload/main", preupload, True),
    ("POST", f"/api/models/{REPO}/commit/main", commit, True),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", lfs_batch, True),
    ("PUT", "/storage/(?P<oid>[0-9a-f]{64})", lfs_upload, False),
    ("HEAD GET", f"/{REPO}/resolve/[^/]+/(?P<path>.+)", resolve, False),
)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: a client that is killed halfway is part of some tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if self.command == "PUT" and self.hub.drop_uploads:
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        request = Request(token, self.rfile.read(length))
        self._send(self.hub.answer(self.command, urlsplit(self.path).path, request))

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 - http.server's names

    def _send(self, reply: Reply) -> None:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Silent, against http.server's habit of writing to stderr."""
