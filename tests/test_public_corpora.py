"""`vaswani data`: a copy, a download, an interruption, and texts that are not the corpus's."""

import gzip
import hashlib
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from zipfile import ZipFile

import pytest
import yaml
from helpers import REPOSITORY, run_recipe

from vaswani_transformer.data.public_corpora import PUBLIC_CORPORA, PublicFile


TREES = b"((S (NP (NN Cats)) (VP (VBP sleep)) (. .)))\n((TITLE (NN Mice)))\n((CIT (NN 7)))\n"
CAPTIONS = b"A dog.\nTwo dogs.\n"


@pytest.fixture
def source(monkeypatch, tmp_path) -> Path:
    """The public source of craft, here a folder with a file of trees in two parts and a compressed text."""
    files = {
        "a.mrg.gz": PublicFile(hashlib.sha256(TREES).hexdigest(), ["1.tree", "2.tree"]),
        "b/text.gz": PublicFile(hashlib.sha256(CAPTIONS).hexdigest(), ["text.gz"]),
    }
    folder = tmp_path / "source"
    corpus = replace(PUBLIC_CORPORA["craft"], url=f"{folder.as_uri()}/", files=files)
    monkeypatch.setitem(PUBLIC_CORPORA, "craft", corpus)
    folder.mkdir()
    # As upstream: spaces before parentheses, and a tree on two lines.
    first = b"( (S (NP (NN Cats))\n     (VP (VBP sleep)) (. .)) )\n( (TITLE (NN Mice )) )\n"
    for name, content in (("1.tree", first), ("2.tree", b"( (CIT (NN 7)) )\n"), ("text.gz", gzip.compress(CAPTIONS))):
        (folder / name).write_bytes(content)
    return folder


def get(*arguments: object, folder: Path) -> CompletedProcess:
    return run_recipe("get_data.py", *arguments, folder=folder)


def text_of(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("name", PUBLIC_CORPORA)
def test_a_copy_is_checked_and_kept(name, shared_data, tmp_path):
    original = shared_data / {"multi30k": "multi30k_en-de-fr", "craft": "craft_treebank"}.get(name, name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(original)
    done = get(name, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    corpus = PUBLIC_CORPORA[name]
    assert f"0 of {len(corpus.files)} files are new" in done.stdout
    assert f"source: {corpus.source}\nlicence: {corpus.licence}\n" in done.stdout
    assert "pinned" not in done.stdout
    packed = {path for pattern in ("*.gz", "*.xz") for path in original.rglob(pattern)}
    assert {original / file for file in corpus.files} == packed


def test_configurations_name_files_of_the_corpora():
    seen = set()
    for config in sorted((REPOSITORY / "recipes" / "configs").glob("*.yaml")):
        for value in yaml.safe_load(config.read_text(encoding="utf-8")).values():
            for path in value if isinstance(value, list) else [value]:
                if str(path).startswith("data/"):
                    _, name, file = path.split("/", 2)
                    assert file in PUBLIC_CORPORA[name].files, f"{config}: {path}"
                    seen.add(name)
    assert len(seen) > 2


def test_an_interrupted_download_continues(source, tmp_path):
    text = (source / "text.gz").rename(source / "later")
    broken = get("craft", folder=tmp_path)
    assert broken.returncode == 1
    assert broken.stderr.startswith(f"get_data.py: {source.as_uri()}/text.gz: ")
    assert "; repeat the command to continue" in broken.stderr
    text.rename(source / "text.gz")
    assert "1 of 2 files are new" in get("craft", folder=tmp_path).stdout
    folder = tmp_path / "data" / "craft"
    assert text_of(folder / "a.mrg.gz") == TREES
    assert text_of(folder / "b" / "text.gz") == CAPTIONS


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("text.gz", b"<p>Try later.</p>"),
        ("text.gz", gzip.compress(CAPTIONS)[:-9]),
        ("2.tree", b"( (CIT (NN 8)) )\n"),
        ("deu-eng.zip", b"<p>Try later.</p>"),
    ],
    ids=["a page", "a part", "another text", "a page as an archive"],
)
def test_another_content_is_never_written(part, content, source, tmp_path, monkeypatch):
    corpus = replace(PUBLIC_CORPORA["tatoeba_en-de"], archive=f"{source.as_uri()}/deu-eng.zip")
    monkeypatch.setitem(PUBLIC_CORPORA, "tatoeba_en-de", corpus)
    (source / part).write_bytes(content)
    refused = get("tatoeba_en-de" if part.endswith(".zip") else "craft", folder=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"get_data.py: {source.as_uri()}/{'' if part == '2.tree' else part}: ")
    assert "try again later" in refused.stderr
    written = {path.name for path in (tmp_path / "data").rglob("*.gz")}
    assert written == ({"a.mrg.gz"} if part == "text.gz" else set())


def test_a_changed_file_is_an_error(source, tmp_path):
    get("craft", folder=tmp_path)
    changed = tmp_path / "data" / "craft" / "a.mrg.gz"
    changed.write_bytes(gzip.compress(TREES + TREES))
    refused = get("craft", folder=tmp_path)
    assert refused.stderr.startswith("get_data.py: data/craft/a.mrg.gz: is another text than the corpus's; remove it")
    assert text_of(changed) == 2 * TREES


def lines_of(path: Path) -> list[str]:
    return text_of(path).decode().split("\n")[:-1]


@pytest.mark.parametrize("name", ["tatoeba_en-de", "tatoeba_en-fr"])
def test_an_archive_is_split_as_the_corpus_was(name, shared_data, tmp_path, monkeypatch):
    original, written = shared_data / name, tmp_path / "data" / name
    languages = name.removeprefix("tatoeba_").split("-")

    def pairs(folder: Path, split: str) -> list[tuple[str, ...]]:
        return list(zip(*(lines_of(folder / f"{split}.{language}.gz") for language in languages), strict=True))

    multiref = f"test.multiref.{'-'.join(languages)}.tsv.gz"
    rows = [line.split("\t") for line in lines_of(original / multiref)]
    others = [(english, text) for english, *texts in rows for text in texts[1:]]
    train, valid, test = (pairs(original, split) for split in ("train", "valid", "test"))
    train = train[::100]  # enough, and quick
    leaks = [(test[0][0], "Neu."), ("New.", valid[0][1]), ("New.", test[1][1])]
    added = [("New.", "Neu."), ("Newer.", train[0][1])]
    archive = [*train, *valid, *test, *leaks[1:], *added]
    random.Random(0).shuffle(archive)
    archive += [*others, leaks[0]]  # the order of an English sentence's translations is that of the archive

    def serve(pairs: list[tuple[str, ...]]) -> None:
        stem = {"de": "deu", "fr": "fra"}[languages[1]]
        lines = "".join(f"{english}\t{other}\tCC-BY 2.0 Attribution: tatoeba.org\n" for english, other in pairs)
        archive = tmp_path / f"{stem}-eng.zip"
        with ZipFile(archive, "w") as members:
            members.writestr(f"{stem}.txt", lines)
        monkeypatch.setitem(PUBLIC_CORPORA, name, replace(PUBLIC_CORPORA[name], archive=archive.as_uri()))

    serve(archive)
    done = get(name, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "7 of 7 files are new" in done.stdout
    assert "lacks" not in done.stdout
    changed = (multiref, *(f"train.{language}.gz" for language in sorted(languages)))
    assert f"differ from the pinned version: {', '.join(changed)}\n" in done.stdout
    for path in original.glob("*.gz"):
        if path.name not in changed:
            assert text_of(written / path.name) == text_of(path)
    assert Counter(pairs(written, "train")) == Counter([*train, *added])
    expected = lines_of(original / multiref)
    assert lines_of(written / multiref) == [f"{expected[0]}\tNeu.", *expected[1:]]
    again = get(name, folder=tmp_path)
    assert "0 of 7 files are new" in again.stdout
    assert "differ from the pinned version" in again.stdout

    (written / changed[0]).unlink()
    serve([pair for pair in archive if pair not in (valid[2], test[6], test[1999])])
    done = get(name, folder=tmp_path)
    assert "valid: the archive lacks 1 pairs, of lines 3\n" in done.stdout
    assert "test: the archive lacks 2 pairs, of lines 7, 2000\n" in done.stdout
    assert pairs(written, "test") == [*test[:6], *test[7:1999]]
    serve(added)
    (written / changed[0]).unlink()
    refused = get(name, folder=tmp_path)
    assert refused.stderr.endswith("has 0 of the 4000 held-out pairs\n")


def test_mistakes_say_what_to_do(tmp_path):
    unknown = get("multi40k", folder=tmp_path)
    assert unknown.returncode == 1
    assert all(name in unknown.stderr for name in PUBLIC_CORPORA)
    only_copied = get("canlaws_en-fr", folder=tmp_path)
    assert only_copied.stderr.startswith("get_data.py: canlaws_en-fr: ")
    assert only_copied.stderr.endswith("; copy test.en.gz to data/canlaws_en-fr\n")


def test_a_missing_file_of_a_configuration_names_the_command(tmp_path):
    refused = run_recipe("train_wmt.py", "--config", "multi30k_en_de", folder=tmp_path)
    assert refused.returncode == 1
    assert "data/multi30k/train.en.gz" in refused.stderr
    assert "`vaswani data multi30k`" in refused.stderr
