"""`vaswani data`: from a copy, from a server on the loopback, interrupted, and with texts that are not the corpus's."""

import gzip
import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CompletedProcess

import datasets
import pytest
import yaml
from helpers import REPOSITORY, run_recipe

from vaswani_transformer.data import public_corpora
from vaswani_transformer.data.public_corpora import PUBLIC_CORPORA, public_corpus


TREES = b"((S (NP (NN Cats)) (VP (VBP sleep)) (. .)))\n((TITLE (NN Mice)))\n((CIT (NN 7)))\n"
CAPTIONS = b"A dog.\nTwo dogs.\n"


class Server(ThreadingHTTPServer):
    """Serves contents by path, counts the requests, and fails for `refused`."""

    contents: dict[str, bytes]
    refused: str | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.asked: Counter[str] = Counter()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.removeprefix("/")
        self.server.asked[path] += 1
        content = self.server.contents[path]
        self.send_response(503 if path == self.server.refused else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.contents[self.path.removeprefix("/")])))
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch, tmp_path) -> Iterator[Server]:
    """The public source of craft, here a file of trees in two parts and a compressed text."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "cache")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    entry = {
        "url": "",
        "files": {
            "a.mrg.gz": {"sha256": hashlib.sha256(TREES).hexdigest(), "parts": ["1.tree", "2.tree"]},
            "b/text.gz": {"sha256": hashlib.sha256(CAPTIONS).hexdigest(), "parts": ["text.gz"]},
        },
    }
    with Server() as server:
        entry["url"] = server.url
        monkeypatch.setitem(public_corpora._TABLE, "craft", public_corpora._TABLE["craft"] | entry)
        # As upstream: spaces before parentheses, and a tree on two lines.
        first = b"( (S (NP (NN Cats))\n     (VP (VBP sleep)) (. .)) )\n( (TITLE (NN Mice )) )\n"
        server.contents = {"1.tree": first, "2.tree": b"( (CIT (NN 7)) )\n", "text.gz": gzip.compress(CAPTIONS)}
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server
        server.shutdown()


def get(*arguments: object, folder: Path) -> CompletedProcess:
    return run_recipe("get_data.py", *arguments, folder=folder)


def text_of(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("name", PUBLIC_CORPORA)
def test_a_copy_has_the_texts_of_the_corpus(name, shared_data, tmp_path):
    done = get(name, "--from", shared_data, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    corpus = public_corpus(name)
    assert corpus.licence in done.stdout
    assert corpus.source in done.stdout
    (original,) = (path for path in shared_data.iterdir() if path.name in (name, *corpus.other_names))
    written = [path for path in (tmp_path / "data" / name).rglob("*") if path.is_file()]
    assert {path.suffix for path in written} <= {".gz", ".xz"}
    for path in written:
        assert path.read_bytes() == (original / path.relative_to(tmp_path / "data" / name)).read_bytes()
    packed = {path for pattern in ("*.gz", "*.xz") for path in original.rglob(pattern)}
    assert len(written) == len(packed)


def test_configurations_name_files_of_the_corpora():
    seen = set()
    for config in sorted((REPOSITORY / "recipes" / "configs").glob("*.yaml")):
        for value in yaml.safe_load(config.read_text(encoding="utf-8")).values():
            for path in value if isinstance(value, list) else [value]:
                if str(path).startswith("data/"):
                    _, name, file = path.split("/", 2)
                    assert file in public_corpus(name).files, f"{config}: {path}"
                    seen.add(name)
    assert len(seen) > 2


def test_an_interrupted_download_continues(server, tmp_path):
    server.refused = "2.tree"
    broken = get("craft", folder=tmp_path)
    assert broken.returncode == 1
    assert broken.stderr.startswith(f"get_data.py: {server.url}2.tree: ")
    assert "repeat the command" in broken.stderr
    assert not [path for path in tmp_path.rglob("data/**/*") if path.is_file()]
    server.refused = None
    assert get("craft", folder=tmp_path).returncode == 0
    folder = tmp_path / "data" / "craft"
    assert text_of(folder / "a.mrg.gz") == TREES
    assert text_of(folder / "b" / "text.gz") == CAPTIONS
    assert server.asked["1.tree"] == server.asked["text.gz"] == 1
    (folder / "b" / "text.gz").unlink()
    again = get("craft", folder=tmp_path)
    assert "1 of 2 files are new" in again.stdout


def test_another_text_is_never_written(server, tmp_path):
    server.contents["2.tree"] = b"( (CIT (NN 8)) )\n"
    refused = get("craft", folder=tmp_path)
    assert refused.returncode == 1
    assert "a.mrg.gz" in refused.stderr
    assert "--from" in refused.stderr
    copy = tmp_path / "copy" / "craft_treebank"
    copy.mkdir(parents=True)
    (copy / "a.mrg.gz").write_bytes(gzip.compress(b"((CIT (NN 8)))\n"))
    refused = get("craft", "--from", "copy", folder=tmp_path)
    assert refused.stderr.startswith("get_data.py: copy/craft_treebank/a.mrg.gz: is another text")
    assert not [path for path in tmp_path.rglob("data/**/*") if path.is_file()]


def test_a_changed_file_is_an_error(server, tmp_path):
    assert get("craft", folder=tmp_path).returncode == 0
    changed = tmp_path / "data" / "craft" / "a.mrg.gz"
    changed.write_bytes(gzip.compress(TREES + TREES))
    refused = get("craft", folder=tmp_path)
    assert refused.stderr.startswith("get_data.py: data/craft/a.mrg.gz: is another text than the corpus's; remove it")
    assert text_of(changed) == 2 * TREES


def test_mistakes_say_what_to_do(tmp_path):
    unknown = get("multi40k", folder=tmp_path)
    assert unknown.returncode == 1
    assert all(name in unknown.stderr for name in PUBLIC_CORPORA)
    only_copied = get("tatoeba_en-de", folder=tmp_path)
    assert only_copied.stderr.startswith("get_data.py: tatoeba_en-de: ")
    assert "--from" in only_copied.stderr
    nowhere = get("multi30k", "--from", "copy", folder=tmp_path)
    assert nowhere.stderr.startswith("get_data.py: from: there is no copy/multi30k; name a directory")


def test_a_missing_file_of_a_configuration_names_the_command(tmp_path):
    refused = run_recipe("train_wmt.py", "--config", "multi30k_en_de", folder=tmp_path)
    assert refused.returncode == 1
    assert "'data/multi30k/train.en.gz'" in refused.stderr
    assert "`vaswani data multi30k`" in refused.stderr
