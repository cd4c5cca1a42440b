"""Files and directories appear complete or not at all, and what has changed is found."""

import errno
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from safetensors import SafetensorError

from vaswani_transformer.files import (
    Manifest,
    atomic_directory,
    atomic_remove,
    atomic_write,
    find_damage,
    locked,
    make_directory,
    require_directory,
    require_same_manifest,
)


def test_a_file_is_replaced_whole(tmp_path):
    atomic_write(tmp_path / "results.json", "before")
    with open(tmp_path / "results.json", encoding="utf-8") as before:
        atomic_write(tmp_path / "results.json", "grün\n")
        assert before.read() == "before"
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("results.json", "grün\n".encode())]


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(tmp_path):
    atomic_write(tmp_path / "results.json", "before")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(tmp_path / "results.json", "after \udcff")
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == "before"


def test_a_file_in_place_of_a_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    for name in ("file", "file/below", "file/a/b", "link"):
        with pytest.raises(NotADirectoryError, match=r"^output_dir: .+/(file|link) is not a directory; name a dir"):
            require_directory("output_dir", tmp_path / name)
    for name in ("", "new", "new/below"):
        require_directory("output_dir", tmp_path / name)


def test_a_directory_is_made_and_can_be_written_into(tmp_path):
    assert make_directory("output", tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list((tmp_path / "a").rglob("*")) == [tmp_path / "a" / "b"]
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        with pytest.raises(ValueError, match=rf"^output: cannot write into .*{name} \(.+\); name another directory$"):
            make_directory("output", tmp_path / name)


def test_a_directory_on_a_read_only_disk_is_refused(tmp_path, monkeypatch):
    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"Read-only file system"):
        make_directory("output", tmp_path)


def test_a_file_of_chunks_is_written_through_another_folder(tmp_path):
    (tmp_path / "folder").mkdir()

    def chunks():
        yield b"one\n"
        assert [path.name for path in (tmp_path / "folder").iterdir()] == [f"out.{os.getpid()}.tmp"]
        yield b"two\n"

    atomic_write(tmp_path / "out", chunks(), tmp_path / "folder")
    assert (tmp_path / "out").read_bytes() == b"one\ntwo\n"
    assert not list((tmp_path / "folder").iterdir())


def write(output: Path, name: str = "first", interrupted: bool = False, replace: bool = False) -> None:
    with atomic_directory(output, replace=replace) as directory:
        (directory / name).touch()
        if interrupted:
            raise KeyboardInterrupt
        (directory / "last").touch()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize("full", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error")])
def test_a_full_disk_is_an_error_that_names_the_directory(full, tmp_path):
    message = re.escape(f"output: cannot write {tmp_path / 'out'}: {full}")
    with pytest.raises(OSError, match=f"^{message}$"), atomic_directory(tmp_path / "out"):
        raise full
    assert not names(tmp_path)


def test_an_atomic_directory_is_complete_or_absent(tmp_path, monkeypatch):
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        write(output, interrupted=True)
    with monkeypatch.context() as patch:
        patch.delattr(os, "replace")
        with pytest.raises(AttributeError):
            write(output)
    assert not names(tmp_path)
    write(output)
    assert names(output) == {"first", "last"}
    with pytest.raises(FileExistsError, match=r"^output: .*out exists already"):
        write(output)


@pytest.mark.parametrize("renames", [0, 1])
def test_an_earlier_directory_is_replaced_or_stays(tmp_path, monkeypatch, renames):
    output, replace, done = tmp_path / "out", os.replace, []

    def interrupted(source, target):
        if len(done) == renames:
            done.append(None)
            raise KeyboardInterrupt
        done.append(None)
        replace(source, target)

    write(output)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(output, "second", replace=True)
    assert names(tmp_path) == {"out"}
    assert names(output) == {"first", "last"}
    write(output, "second", replace=True)
    assert names(tmp_path) == {"out"}
    assert names(output) == {"second", "last"}


def test_leftovers_of_killed_processes_are_deleted_and_those_of_live_ones_stay(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"out.{ended.pid}.tmp", f"out.{ended.pid}.tmp.replaced", f"out.{os.getppid()}.tmp", "out.mine.tmp"):
        (tmp_path / name).mkdir()
    write(tmp_path / "out")
    assert names(tmp_path) == {"out", f"out.{os.getppid()}.tmp", "out.mine.tmp"}


def test_a_directory_that_is_removed_disappears_at_once(tmp_path, monkeypatch):
    write(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # as if killed before
        atomic_remove(tmp_path / "out", tmp_path / "removed")
    assert names(tmp_path) == {"removed"}
    for _ in range(2):  # with remains, and without a directory
        write(tmp_path / "out")
        atomic_remove(tmp_path / "out", tmp_path / "removed")
        atomic_remove(tmp_path / "out", tmp_path / "removed")
        assert not names(tmp_path / "removed")


def test_a_manifest_finds_what_has_changed(tmp_path):
    (tmp_path / "below").mkdir()
    files = [tmp_path / "a", tmp_path / "below" / "b"]
    for file in files:
        file.write_bytes(b"content")
    Manifest.of(tmp_path, step=3).save(tmp_path)
    assert Manifest.load(tmp_path).notes == {"step": 3}
    assert find_damage(tmp_path) is None
    for file in files:
        for content, damage in ((b"CONTENT", "has changed since it was written"), (b"", "has 0 bytes instead of 7")):
            file.write_bytes(content)
            assert find_damage(tmp_path) == f"{file.name} {damage}"
            assert find_damage(tmp_path, "other*") is None
        file.unlink()
        assert find_damage(tmp_path) == f"{file.name} is missing"
        file.write_bytes(b"content")
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"step": 3', '"step": 4'), encoding="utf-8")
    assert find_damage(tmp_path) == "manifest.json is damaged"
    manifest.unlink()
    assert find_damage(tmp_path) == "manifest.json is missing"
    assert find_damage(tmp_path / "nothing") == "is missing"


def test_manifests_are_compared_by_what_both_have_and_files_by_their_content():
    before = {"size": 1, "left": 0, "files": [{"file": "/a", "sha256": "x"}, {"name": "hub", "split": "train"}]}
    same = {"size": 1, "right": 0, "files": [{"file": "/elsewhere", "sha256": "x"}, {"name": "hub", "split": "train"}]}
    require_same_manifest(before, same, "differs in", "stop")
    now = {"size": 2, "files": [{"file": "/a", "sha256": "y"}, {"name": "hub", "split": "train"}]}
    with pytest.raises(
        ValueError, match=r"^x differs in size \(1 then, 2 now\), files \(/a hub then, /a hub now\); y$"
    ):
        require_same_manifest(before, now, "x differs in", "y")


def test_a_locked_directory_is_refused_to_others(tmp_path):
    refused = pytest.raises(ValueError, match=r"^output: another process is at work in ")
    with locked(tmp_path), refused, locked(tmp_path, "output"):
        pass
    with locked(tmp_path):
        pass
