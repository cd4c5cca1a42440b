"""A Hub on the loopback: enough of its protocol for huggingface_hub 1.x and 2.x to push models and read them back.

It knows models on the branch `main`, and stores datasets and Spaces; uploads go through LFS, not Xet. The client reads
its settings when it is imported, so what talks to this server runs in a process of its own. Gradio brings starlette and
uvicorn.
"""

import base64
import hashlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import uvicorn
from helpers import run_python
from huggingface_hub import ModelCard
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


TOKEN = "hf_right"
USER = "user"
LFS_SUFFIXES = (".parquet", ".png", ".safetensors", ".whl")


def refusal(status: int, message: str, code: str | None = None, **headers: str) -> HTTPException:
    """An error as the Hub words it, in headers for huggingface_hub."""
    headers |= {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return HTTPException(status, message, headers)


def file_oid(path: str, content: bytes) -> str:
    """Digest that the client compares with that of its own file, and the file's ETag."""
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


class HubServer:
    """A Hub to push to. It writes for the token `hf_right` only, and misbehaves as its attributes say.

    Args:
        home: Where its clients keep what they have loaded from it.

    Attributes:
        repositories: By "namespace/name", datasets and Spaces by "datasets/namespace/name" and "spaces/...". A new one
            holds `.gitattributes`.
        read_only: Namespaces and repositories that answer 403 to writing.
        drop_uploads: Whether the connection of an LFS upload is cut off.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.read_only: set[str] = set()
        self.drop_uploads = False

    def __enter__(self) -> "HubServer":
        model = "/api/{kind}/{namespace}/{name}"
        handlers = [
            ("GET", "/api/whoami-v2", self.whoami),
            ("POST", "/api/validate-yaml", self.validate_yaml),
            ("POST", "/api/repos/create", self.create),
            ("GET", model, self.model_info),
            ("GET", model + "/revision/{revision}", self.model_info),
            ("GET", model + "/auth-check/write", self.auth_check),
            ("GET", model + "/tree/{revision}", self.tree),
            ("GET", model + "/tree/{revision}/{folder:path}", self.tree),
            ("POST", model + "/preupload/main", self.preupload),
            ("POST", model + "/commit/main", self.commit),
            ("PUT", "/storage/{oid}", self.lfs_upload),
        ]
        for repository in ("/{namespace}/{name}", "/{kind}/{namespace}/{name}"):
            handlers += [
                ("POST", repository + ".git/info/lfs/objects/batch", self.lfs_batch),
                ("GET", repository + "/resolve/{revision}/{path:path}", self.resolve),
            ]
        routes = [Route(path, _with_known_token(handler), methods=[method]) for method, path, handler in handlers]
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        options = {"lifespan": "off", "log_level": "critical", "ws": "none", "timeout_graceful_shutdown": 1}
        self._server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), **options))
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def environment(self, token: str | None = TOKEN) -> dict[str, str]:
        """The environment of a process that knows no other Hub than this one; without a token if it is None."""
        others = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        settings = {"HF_ENDPOINT": self.url, "HF_HOME": str(self._home)}
        settings |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
        settings |= {f"HF_HUB_DISABLE_{name}": "1" for name in ("XET", "TELEMETRY", "PROGRESS_BARS")}
        return kept | settings | ({"HF_TOKEN": token} if token is not None else {})

    def run(self, program: str | Path, *arguments: object, folder: Path, token: str | None = TOKEN) -> CompletedProcess:
        """Run a program with this Hub.

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
        return run_python(words, environment=self.environment(token), folder=folder)

    def _find(self, request: Request) -> Repository:
        repo = _full_name("{namespace}/{name}".format(**request.path_params), request.path_params.get("kind"))
        if repo not in self.repositories:
            raise refusal(404, "Repository not found", "RepoNotFound")
        return self.repositories[repo]

    def _writable(self, request: Request) -> Repository:
        _require_token(request)
        found = self._find(request)
        if self.read_only & {found.name, request.path_params["namespace"]}:
            raise refusal(403, "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")
        return found

    async def whoami(self, request: Request) -> Response:
        _require_token(request)
        access = {"type": "access_token", "accessToken": {"displayName": "tests", "role": "write"}}
        return JSONResponse({"type": "user", "id": "1", "name": USER, "fullname": USER, "orgs": [], "auth": access})

    async def validate_yaml(self, request: Request) -> Response:
        """Check only that there is metadata: the Hub's rules are its own."""
        ModelCard((await request.json())["content"])
        return JSONResponse({"errors": [], "warnings": []})

    async def create(self, request: Request) -> Response:
        _require_token(request)
        wanted = await request.json()
        namespace = wanted.get("organization") or USER
        name = f"{namespace}/{wanted['name']}"
        repo = _full_name(name, f"{wanted.get('type') or 'model'}s")
        if namespace in self.read_only:
            raise refusal(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
        reply = {"url": f"{self.url}/{repo}", "name": name, "id": name}
        if repo in self.repositories:
            return JSONResponse({"error": "You already created this model repo", **reply}, 409)
        private = wanted.get("private") or wanted.get("visibility") == "private"
        self.repositories[repo] = Repository(repo, bool(private))
        return JSONResponse(reply)

    async def model_info(self, request: Request) -> Response:
        return JSONResponse(self._find(request).info())

    async def auth_check(self, request: Request) -> Response:
        self._writable(request)
        return JSONResponse({})

    async def tree(self, request: Request) -> Response:
        files = self._find(request).files
        if (folder := request.path_params.get("folder")) is not None:
            raise refusal(404, f"{folder} does not exist", "EntryNotFound")
        entries = [
            {"type": "file", "path": path, "oid": file_oid(path, content), "size": len(content)}
            for path, content in sorted(files.items())
        ]
        return JSONResponse(entries)

    async def resolve(self, request: Request) -> Response:
        repository, path = self._find(request), request.path_params["path"]
        # By the commit the client's cache also remembers that a file does not exist.
        commit = {"X-Repo-Commit": repository.sha}
        if path not in repository.files:
            raise refusal(404, "Entry not found", "EntryNotFound", **commit)
        content = repository.files[path]
        return Response(content, headers={**commit, "ETag": f'"{file_oid(path, content)}"'})

    async def preupload(self, request: Request) -> Response:
        files, answers = self._writable(request).files, []
        for new in (await request.json())["files"]:
            path = new["path"]
            mode = "lfs" if path.endswith(LFS_SUFFIXES) else "regular"
            known = {"oid": file_oid(path, files[path])} if path in files else {}
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **known})
        return JSONResponse({"files": answers})

    async def lfs_batch(self, request: Request) -> Response:
        self._writable(request)
        objects = [{"oid": each["oid"], "size": each["size"]} for each in (await request.json())["objects"]]
        for wanted in objects:
            if wanted["oid"] not in self.objects:
                wanted["actions"] = {"upload": {"href": f"{self.url}/storage/{wanted['oid']}"}}
        return JSONResponse({"transfer": "basic", "objects": objects})

    async def lfs_upload(self, request: Request) -> Response:
        """Store an object; without a token, since the Hub signs the addresses of uploads."""
        content, oid = await request.body(), request.path_params["oid"]
        if self.drop_uploads:
            return StreamingResponse(_cut_off(), headers={"Content-Length": "1"})
        if hashlib.sha256(content).hexdigest() != oid:
            raise refusal(400, "The content does not have the hash that was announced")
        self.objects[oid] = content
        return Response()

    async def commit(self, request: Request) -> Response:
        repository = self._writable(request)
        files = dict(repository.files)
        for operation in map(json.loads, (await request.body()).splitlines()):
            kind, value = operation["key"], operation["value"]
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
        sha = repository.commit(files)
        url = f"{self.url}/{repository.name}/commit/{sha}"
        return JSONResponse({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})


def _with_known_token(handler: Callable[[Request], Awaitable[Response]]) -> Callable:
    async def checked(request: Request) -> Response:
        """Like the Hub, refuses a wrong token everywhere."""
        if request.headers.get("Authorization", f"Bearer {TOKEN}") != f"Bearer {TOKEN}":
            raise refusal(401, "Invalid credentials in Authorization header")
        return await handler(request)

    return checked


def _full_name(repo: str, kind: str | None) -> str:
    return repo if kind in (None, "models") else f"{kind}/{repo}"


def _require_token(request: Request) -> None:
    if "Authorization" not in request.headers:
        raise refusal(401, "Invalid username or password.")


async def _cut_off() -> AsyncIterator[bytes]:
    """A body that ends before its length: the server closes the connection."""
    yield b""
    raise ConnectionError
