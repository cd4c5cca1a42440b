"""A Hub on the loopback: enough of its protocol for huggingface_hub 1.x and 2.x to push models and read them back.

    with HubServer() as hub:
        subprocess.run([sys.executable, "push.py"], env=hub.environment(tmp_path), check=True)
        assert "README.md" in hub.repositories["user/model"].files

The client reads its settings when it is imported, so what talks to this server runs in a process of its own.
It knows models on the branch `main`; uploads go through LFS, not Xet.
"""

import base64
import hashlib
import json
import os
import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


TOKEN = "hf_right"
USER = "user"
LFS_SUFFIXES = (".bin", ".gz", ".model", ".npy", ".npz", ".onnx", ".pkl", ".pt", ".pth", ".safetensors", ".tar", ".zip")
LFS_SIZE = 10 * 2**20
LICENSES = re.compile(
    "apache-2.0|mit|bsd-[23]-clause|cc-by-4.0|cc-by-sa-4.0|cc-by-nc(-sa)?-4.0|cc0-1.0|a?gpl-3.0|mpl-2.0|unlicense|other|unknown"
)
TEXT = re.compile(r".+", re.DOTALL)
METRIC = {"type": TEXT, "value": Any, "name?": TEXT}
RESULT = {"task": {"type": TEXT}, "dataset?": {"type": TEXT, "name": TEXT}, "metrics": [METRIC]}
# A pattern asks for such a text, a list for a list, a tuple for one or a list; "?" marks what may be left out.
CARD = {
    "license?": (LICENSES,),
    "language?": (re.compile("[a-z]{2,3}|code|multilingual"),),
    "datasets?": (re.compile(r"[\w.-]+(/[\w.-]+)?"),),
    "metrics?": (TEXT,),
    "tags?": (TEXT,),
    "base_model?": (TEXT,),
    "library_name?": TEXT,
    "pipeline_tag?": re.compile("[a-z0-9-]+"),
    "model-index?": [{"name": TEXT, "results": [RESULT]}],
}


def faults(path: str, value: Any, rule: Any) -> Iterator[str]:
    """What is wrong with a value of the metadata, one message each."""
    if isinstance(rule, tuple):
        rule = [*rule] if isinstance(value, list) else rule[0]
    if isinstance(rule, dict):
        if not isinstance(value, dict):
            return (yield f'"{path}" must be of type object')
        for key, inner in rule.items():
            name = key.rstrip("?")
            child = f"{path}.{name}" if path else name
            if name in value:
                yield from faults(child, value[name], inner)
            elif name == key:
                yield f'"{child}" is required'
    elif isinstance(rule, list):
        if not isinstance(value, list):
            return (yield f'"{path}" must be an array')
        for index, item in enumerate(value):
            yield from faults(f"{path}[{index}]", item, rule[0])
    elif rule is not Any and not isinstance(value, str):
        yield f'"{path}" must be a string'
    elif rule is not Any and not rule.fullmatch(value):
        yield f'"{path}" with value "{value}" is not valid'


def read_metadata(card: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """The metadata of a README, with the Hub's errors and warnings about it."""
    block = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*$", card, re.DOTALL | re.MULTILINE)
    try:
        data = yaml.safe_load(block[1]) if block else None
    except yaml.YAMLError as error:
        return {}, [f"Failed to parse YAML metadata: {error}"], []
    if data is None:
        return {}, [], ["empty or missing yaml metadata in repo card"]
    errors = list(faults("", data, CARD)) if isinstance(data, dict) else ["The metadata must be of type object"]
    return ({} if errors else data), errors, []


def listed(card: dict[str, Any], name: str) -> list[Any]:
    value = card.get(name, [])
    return value if isinstance(value, list) else [value]


class Reply(NamedTuple):
    body: Any
    headers: Mapping[str, str] = {}
    status: int = 200


class RefusalError(Exception):
    """An error as the Hub words it: JSON for people, headers for huggingface_hub."""

    def __init__(self, status: int, message: str, code: str | None = None, **body: Any) -> None:
        super().__init__(message)
        line = " ".join(message.split())[:500].encode("ascii", "replace").decode()
        headers = {"X-Error-Message": line} | ({"X-Error-Code": code} if code else {})
        self.reply = Reply({"error": message, **body}, headers, status)


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    token: str | None
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def is_lfs(path: str, content: bytes, size: int | None = None) -> bool:
    """Whether the Hub stores a file in LFS, from its name, the beginning of its content and its size."""
    size = len(content) if size is None else size
    return size > 0 and (path.endswith(LFS_SUFFIXES) or size > LFS_SIZE or b"\0" in content[:512])


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def file_oid(path: str, content: bytes) -> str:
    """What the client compares its own file with, and the file's ETag."""
    return hashlib.sha256(content).hexdigest() if is_lfs(path, content) else git_oid(content)


@dataclass
class Repository:
    """The files on `main`, and the (hash, message) of every commit."""

    name: str
    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[tuple[str, str]] = field(default_factory=list)
    snapshots: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], message: str) -> str:
        state = [self.name, self.commits, message, sorted((path, git_oid(content)) for path, content in files.items())]
        sha = hashlib.sha1(json.dumps(state).encode()).hexdigest()
        self.files = files
        self.snapshots[sha] = dict(files)
        self.commits.append((sha, message))
        return sha

    def at(self, revision: str) -> tuple[str, dict[str, bytes]]:
        if revision == "main":
            return self.commits[-1][0], self.files
        if revision not in self.snapshots:
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return revision, self.snapshots[revision]

    def info(self, revision: str) -> dict[str, Any]:
        sha, files = self.at(revision)
        card, _, _ = read_metadata(files.get("README.md", b"").decode())
        named = [card.get("library_name"), card.get("pipeline_tag"), *listed(card, "tags"), *listed(card, "language")]
        tags = [tag for tag in named if tag] + [f"license:{name}" for name in listed(card, "license")]
        return {
            "id": self.name,
            "sha": sha,
            "private": self.private,
            "tags": list(dict.fromkeys(tags)),
            "siblings": [{"rfilename": path} for path in sorted(files)],
            "cardData": card,
            **{key: card[key] for key in ("pipeline_tag", "library_name", "model-index") if key in card},
        }

    def tree(self, revision: str, folder: str, recursive: bool) -> list[dict[str, Any]]:
        _, files = self.at(revision)
        prefix = f"{folder}/" if folder else ""
        found: dict[str, dict[str, Any]] = {}
        for path, content in sorted(files.items()):
            if not path.startswith(prefix):
                continue
            child, nested, _ = path.removeprefix(prefix).partition("/")
            if nested and not recursive:
                found[child] = {"type": "directory", "path": prefix + child, "oid": git_oid(child.encode())}
                continue
            found[path] = {"type": "file", "path": path, "oid": git_oid(content), "size": len(content)}
            if is_lfs(path, content):
                found[path]["lfs"] = {"oid": file_oid(path, content), "size": len(content), "pointerSize": 134}
        if folder and not found:
            raise RefusalError(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        return list(found.values())


class HubServer:
    """A Hub to push to. It writes for the token `hf_right` only, and misbehaves as its attributes say.

    Attributes:
        repositories: by "namespace/name"; a created one holds the Hub's initial commit with `.gitattributes`.
        requests: "METHOD /path" of every request, in order.
        read_only: namespaces and repositories that answer 403 to writing.
        drop_uploads: the number of LFS uploads still to be cut off halfway; `math.inf` for all.
        fail_commits: the number of commits still to be answered with `commit_error`; `math.inf` for all.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.read_only: set[str] = set()
        self.drop_uploads: float = 0
        self.fail_commits: float = 0
        self.commit_error = 503
        self._lock = threading.RLock()

    def __enter__(self) -> "HubServer":
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """The environment of a process that knows no other Hub than this one; without a token if it is None."""
        others = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        settings = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        flags = dict.fromkeys(("XET", "TELEMETRY", "PROGRESS_BARS"), "1")
        settings |= {f"HF_HUB_DISABLE_{name}": value for name, value in flags.items()}
        return kept | settings | ({"HF_TOKEN": token} if token is not None else {})

    def spend(self, counter: str) -> bool:
        """Takes one from a counter of misbehaviours; whether there was one."""
        with self._lock:
            left = getattr(self, counter)
            setattr(self, counter, max(left - 1, 0))
            return left > 0

    def answer(self, request: Request) -> Reply:
        with self._lock:
            try:
                for method, pattern, handler, guarded in ROUTES:
                    match = re.fullmatch(pattern, request.path)
                    if match and request.method in method.split():
                        authenticate(request, guarded)
                        return handler(self, request, **{name: unquote(it) for name, it in match.groupdict("").items()})
                raise RefusalError(404, "Sorry, we can't find the page you are looking for.")
            except RefusalError as refusal:
                return refusal.reply
            except Exception:
                # Not 500, which the client would try again five times before it shows what is wrong here.
                return RefusalError(501, traceback.format_exc()).reply

    def find(self, repo: str, request: Request) -> Repository:
        found = self.repositories.get(repo)
        if found is None:
            raise RefusalError(401 if request.token is None else 404, "Repository not found", "RepoNotFound")
        return found

    def writable(self, repo: str, request: Request, revision: str = "main") -> Repository:
        found = self.find(repo, request)
        if self.read_only & {repo, repo.split("/")[0]}:
            raise RefusalError(403, "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")
        if revision != "main":
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        if "create_pr" in request.query:
            raise RefusalError(400, "Pull requests are not supported by this server")
        return found


def authenticate(request: Request, guarded: bool) -> None:
    """Like the Hub, refuses a wrong token everywhere, and no token only where one is needed."""
    if request.token not in (None, TOKEN):
        raise RefusalError(401, "Invalid credentials in Authorization header")
    if request.token is None and guarded:
        # The client takes such a 401 for a missing repository, but over https only: the code makes it do so here.
        in_repository = request.path.startswith("/api/models/")
        raise RefusalError(401, "Invalid username or password.", "RepoNotFound" if in_repository else None)


def whoami(hub: HubServer, request: Request) -> Reply:
    access = {"type": "access_token", "accessToken": {"displayName": "tests", "role": "write"}}
    return Reply({"type": "user", "id": "1", "name": USER, "fullname": USER, "orgs": [], "auth": access})


def validate_yaml(hub: HubServer, request: Request) -> Reply:
    _, errors, warnings = read_metadata(request.json()["content"])
    body = {name: [{"message": text} for text in texts] for name, texts in (("errors", errors), ("warnings", warnings))}
    return Reply(body, status=400 if errors else 200)


def create(hub: HubServer, request: Request) -> Reply:
    wanted = request.json()
    namespace = wanted.get("organization") or USER
    repo = f"{namespace}/{wanted['name']}"
    url = f"{hub.url}/{repo}"
    if repo in hub.repositories and namespace not in hub.read_only:
        raise RefusalError(409, "You already created this model repo", url=url)
    if hub.read_only & {repo, namespace}:
        raise RefusalError(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
    private = wanted.get("private") or wanted.get("visibility") == "private"
    attributes = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_SUFFIXES)
    hub.repositories[repo] = Repository(repo, bool(private))
    hub.repositories[repo].commit({".gitattributes": attributes.encode()}, "initial commit")
    return Reply({"url": url, "name": repo, "id": repo})


def model_info(hub: HubServer, request: Request, repo: str, revision: str = "") -> Reply:
    return Reply(hub.find(repo, request).info(revision or "main"))


def auth_check(hub: HubServer, request: Request, repo: str, write: str = "") -> Reply:
    hub.writable(repo, request) if write else hub.find(repo, request)
    return Reply({})


def tree(hub: HubServer, request: Request, repo: str, revision: str, path: str) -> Reply:
    recursive = request.query.get("recursive", ["false"])[0].lower() in ("true", "1")
    return Reply(hub.find(repo, request).tree(revision, path, recursive))


def resolve(hub: HubServer, request: Request, repo: str, revision: str, path: str) -> Reply:
    sha, files = hub.find(repo, request).at(revision)
    if path not in files:
        refusal = RefusalError(404, "Entry not found", "EntryNotFound").reply
        # From this the client's cache remembers, per commit, that the file does not exist.
        return refusal._replace(headers={**refusal.headers, "X-Repo-Commit": sha})
    content = files[path]
    etag = f'"{file_oid(path, content)}"'
    headers = {"ETag": etag, "X-Repo-Commit": sha, "Content-Type": "application/octet-stream"}
    if is_lfs(path, content):
        headers |= {"X-Linked-ETag": etag, "X-Linked-Size": str(len(content))}
    return Reply(content, headers)


def preupload(hub: HubServer, request: Request, repo: str, revision: str) -> Reply:
    files = hub.writable(repo, request, revision).files
    answers = []
    for new in request.json()["files"]:
        lfs = is_lfs(new["path"], base64.b64decode(new["sample"]), new["size"])
        answer = {"path": new["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
        if new["path"] in files:
            answer["oid"] = file_oid(new["path"], files[new["path"]])
        answers.append(answer)
    return Reply({"files": answers})


def lfs_batch(hub: HubServer, request: Request, repo: str) -> Reply:
    hub.writable(repo, request)
    objects = [{"oid": wanted["oid"], "size": wanted["size"]} for wanted in request.json()["objects"]]
    for wanted in objects:
        if wanted["oid"] not in hub.objects:
            verify = {"href": f"{hub.url}/{repo}.git/info/lfs/objects/verify"}
            wanted["actions"] = {"upload": {"href": f"{hub.url}/storage/{wanted['oid']}"}, "verify": verify}
    return Reply({"transfer": "basic", "objects": objects})


def lfs_upload(hub: HubServer, request: Request, oid: str) -> Reply:
    if hashlib.sha256(request.body).hexdigest() != oid:
        raise RefusalError(400, "The content does not have the hash that was announced")
    hub.objects[oid] = request.body
    return Reply(b"")


def lfs_verify(hub: HubServer, request: Request, repo: str) -> Reply:
    wanted = request.json()
    if len(hub.objects.get(wanted["oid"], b"")) != wanted["size"]:
        raise RefusalError(404, "The object was not uploaded")
    return Reply({"success": True})


def commit(hub: HubServer, request: Request, repo: str, revision: str) -> Reply:
    repository = hub.writable(repo, request, revision)
    if hub.spend("fail_commits"):
        raise RefusalError(hub.commit_error, "Internal Error - We're working hard to fix this as soon as possible!")
    header, *operations = [json.loads(line) for line in request.body.splitlines()]
    files = dict(repository.files)
    for operation in operations:
        apply(hub, files, operation["key"], operation["value"])
    _, errors, _ = read_metadata(files.get("README.md", b"").decode())
    if errors:
        raise RefusalError(400, "Invalid metadata in README.md: " + "; ".join(errors))
    sha = repository.commit(files, header["value"]["summary"])
    return Reply({"success": True, "commitOid": sha, "commitUrl": f"{hub.url}/{repo}/commit/{sha}", "hookOutput": ""})


def apply(hub: HubServer, files: dict[str, bytes], key: str, value: dict[str, Any]) -> None:
    path = value["path"].rstrip("/")
    if key == "file":
        files[path] = base64.b64decode(value["content"])
    elif key == "lfsFile":
        if value["oid"] not in hub.objects:
            raise RefusalError(400, f"LFS pointer of {path} points to an object that was not uploaded")
        files[path] = hub.objects[value["oid"]]
    elif key in ("deletedFile", "deletedFolder"):
        gone = [name for name in files if name == path or (key == "deletedFolder" and name.startswith(f"{path}/"))]
        if not gone:
            raise RefusalError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        for name in gone:
            del files[name]
    else:
        raise RefusalError(400, f"Unknown operation {key}")


REPO = "(?P<repo>[^/]+/[^/]+)"
REVISION = "(?P<revision>[^/]+)"
# Methods, path, function, whether a token is needed. Uploads need none: on the Hub their addresses are signed.
ROUTES = (
    ("GET", "/api/whoami-v2", whoami, True),
    ("POST", "/api/validate-yaml", validate_yaml, False),
    ("POST", "/api/repos/create", create, True),
    ("GET", f"/api/models/{REPO}", model_info, False),
    ("GET", f"/api/models/{REPO}/revision/{REVISION}", model_info, False),
    ("GET", f"/api/models/{REPO}/auth-check(?P<write>/write)?", auth_check, True),
    ("GET", f"/api/models/{REPO}/tree/{REVISION}(?:/(?P<path>.+))?", tree, False),
    ("POST", f"/api/models/{REPO}/preupload/{REVISION}", preupload, True),
    ("POST", f"/api/models/{REPO}/commit/{REVISION}", commit, True),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", lfs_batch, True),
    ("PUT", "/storage/(?P<oid>[0-9a-f]{64})", lfs_upload, False),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/verify", lfs_verify, True),
    ("HEAD GET", f"/{REPO}/resolve/{REVISION}/(?P<path>.+)", resolve, False),
)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: a client that is killed halfway is part of some tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def _serve(self) -> None:
        url = urlsplit(self.path)
        self.hub.requests.append(f"{self.command} {url.path}")
        length = int(self.headers.get("Content-Length", 0))
        if self.command == "PUT" and self.hub.spend("drop_uploads"):
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        self._send(self.hub.answer(Request(self.command, url.path, parse_qs(url.query), token, body)))

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 - http.server's names

    def _send(self, reply: Reply) -> None:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body, default=str).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Silent, against http.server's habit of writing to stderr."""
