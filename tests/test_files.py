"""Files and directories appear complete or not at all, and what has changed is found."""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import limit_of_files, start_python
from safetensors import SafetensorError

from vaswani_transformer.io.files import (
    Manifest,
    atomic_directory,
    atomic_remove,
    atomic_write,
    find_damage,
    locked,
    make_directory,
    read_json,
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


def test_what_exceeds_a_limit_of_the_size_of_files_is_named(tmp_path):
    with limit_of_files(1000):
        with pytest.raises(OSError, match=r"File too large: '.*/out\.txt'$"):
            atomic_write(tmp_path / "out.txt", 2000 * "x")
        cannot = pytest.raises(OSError, match=r"^output: cannot write .*/out: .*File too large")
        with cannot, atomic_directory(tmp_path / "out") as directory:
            (directory / "file").write_bytes(bytes(2000))
    assert not names(tmp_path)


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
        with pytest.raises(
            ValueError, match=rf"^output: cannot write into .*{name} \(.+\); name another directory with --output$"
        ):
            make_directory("output", tmp_path / name)


def test_a_file_of_chunks_is_written_through_another_folder(tmp_path):
    (tmp_path / "folder").mkdir()

    def chunks():
        yield b"one\n"
        (temporary,) = (tmp_path / "folder").iterdir()
        assert re.fullmatch(r"out\..+\.tmp", temporary.name)
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


def test_an_atomic_directory_is_complete_or_absent(tmp_path):
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        write(output, interrupted=True)
    assert not names(tmp_path)
    write(output)
    assert names(output) == {"first", "last"}
    with pytest.raises(FileExistsError, match=r"^output: .*out exists already"):
        write(output)


def test_an_earlier_directory_is_replaced_or_stays(tmp_path, monkeypatch):
    output, replace, done = tmp_path / "out", os.replace, []

    def interrupted(source, target):
        done.append(source)
        if len(done) == 2:  # the earlier one has been moved aside
            raise KeyboardInterrupt
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


WRITES = """
import os, signal, sys
from pathlib import Path
from vaswani_transformer.io.files import atomic_directory
with atomic_directory(Path(sys.argv[1])) as directory:
    (directory / "first").touch()
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print(directory.parent, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def begin(tmp_path_factory) -> Callable[[Path, str], subprocess.Popen]:
    script = tmp_path_factory.mktemp("script") / "writes.py"
    script.write_text(WRITES, encoding="utf-8")
    return lambda output, fate: start_python([script, output, fate], stdin=subprocess.PIPE)


@pytest.mark.system
def test_only_what_a_killed_process_left_is_deleted(tmp_path, begin):
    begin(tmp_path / "out", "killed").communicate()
    (left,) = tmp_path.glob("*.tmp")
    elsewhere, unmarked, damaged, emptied = (tmp_path / f"out.{digit * 12}.tmp" for digit in "0123")
    for directory in (elsewhere, unmarked, damaged, emptied):
        shutil.copytree(left, directory)
    shutil.rmtree(emptied / "out")  # killed while it was deleted
    (mark,) = (path for path in left.iterdir() if path.is_file())
    found = {**json.loads(mark.read_text()), "host": "another"}
    (elsewhere / mark.name).write_text(json.dumps(found), encoding="utf-8")
    (unmarked / mark.name).unlink()
    (damaged / mark.name).write_text(99_999 * "[", encoding="utf-8")
    (tmp_path / f"out.{'4' * 12}.tmp").mkdir()  # killed before it was marked
    ended = subprocess.Popen(["true"])
    ended.wait()
    foreign = ["out.20240131.tmp_backup", f"out.{ended.pid}.tmp", f"out.{ended.pid}.tmp.replaced", "out.tmp", "out.x"]
    for name in foreign:
        (tmp_path / name / "work").mkdir(parents=True)
    write(tmp_path / "out")
    assert names(tmp_path) == {"out", elsewhere.name, unmarked.name, damaged.name, *foreign}
    assert all((tmp_path / name / "work").is_dir() for name in foreign)


@pytest.mark.system
def test_a_directory_moved_aside_by_a_killed_process_comes_back(tmp_path, begin):
    begin(tmp_path / "out", "killed").communicate()
    (left,) = tmp_path.glob("*.tmp")
    (left / "out.replaced" / "earlier").mkdir(parents=True)
    with pytest.raises(FileExistsError, match=r"out exists already"):
        write(tmp_path / "out")
    assert names(tmp_path) == {"out"}
    assert names(tmp_path / "out") == {"earlier"}


@pytest.mark.system
def test_a_directory_that_another_process_makes_is_refused_and_its_work_stays(tmp_path, begin):
    output = tmp_path / "out"
    with begin(output, "lives") as other:
        staged = Path(other.stdout.readline().strip())
        for replace in (False, True):
            with pytest.raises(
                ValueError, match=f"^output: another process is at work in {re.escape(str(output))}; wait for it"
            ):
                write(output, "second", replace=replace)
        assert staged.is_dir()
        other.communicate("")
    assert names(output) == {"first"}
    assert names(tmp_path) == {"out"}


def test_a_directory_that_appears_meanwhile_stays(tmp_path):
    with pytest.raises(FileExistsError, match=r"^output: .*out exists already"), atomic_directory(tmp_path / "out"):
        (tmp_path / "out" / "theirs").mkdir(parents=True)
    assert names(tmp_path) == {"out"}
    assert names(tmp_path / "out") == {"theirs"}


FAULTS = {
    b'{"a": 1,\n"b": }': "line 2 is not JSON (",
    b'{"a": 1,\n"b": "\xff"}': "line 2 is not UTF-8 (",
    b"[1, 2]": "it must be an object, is [1, 2]",
    b'{"a": {"b": 1, "c": 2, "b": 1}}': "it has 'b' twice",
    b'{"a": ' + 60 * b"[" + 60 * b"]" + b"}": "it is nested too deeply",
    99_999 * b'{"a": ': "it is nested too deeply",
    b'{"a": "' + 2**25 * b"x" + b'"}': "it has more than 33554432 bytes",
}


@pytest.mark.parametrize("content", FAULTS, ids=lambda content: str(content[:16]))
def test_json_that_is_damaged_or_foreign_is_refused_with_its_name_and_line(content, tmp_path):
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged: {FAULTS[content]}")):
        read_json(path)
    (tmp_path / "manifest.json").write_bytes(content)
    assert find_damage(tmp_path).startswith(f"manifest.json is damaged: {FAULTS[content]}")


@pytest.mark.parametrize("files", [None, [], {"a": 3}, {"a": {"size": 1}}])
def test_a_manifest_with_a_valid_digest_and_wrong_types_is_damage(files, tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    content = {"files": files, "format": 1}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps({**content, "sha256": digest}), encoding="utf-8")
    assert find_damage(tmp_path) is not None


def test_a_directory_is_removed_by_way_of_another_folder(tmp_path):
    for _ in range(2):
        write(tmp_path / "out")
        atomic_remove(tmp_path / "out", tmp_path / "removed")
        assert names(tmp_path) == {"removed"}
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


@pytest.mark.parametrize("entry", [{}, {"size": 2, "sha256": "as an earlier version has written"}])
def test_a_manifest_lets_a_configuration_change_that_stays_json(entry, tmp_path):
    Manifest({"config.json": entry}).save(tmp_path)
    assert find_damage(tmp_path) == "config.json is missing"
    (tmp_path / "config.json").write_text('{"alignment_heads": [[0, 1]]}', encoding="utf-8")
    assert find_damage(tmp_path) is None
    assert Manifest.of(tmp_path).files == {"config.json": {}}
    (tmp_path / "config.json").write_text('{"alignment_heads": [[0,', encoding="utf-8")
    assert find_damage(tmp_path).startswith("config.json is damaged: line 1 is not JSON")


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
    path = tmp_path / "directory"
    refused = pytest.raises(ValueError, match=r"^output: another process is at work in ")
    with locked(path), refused, locked(path, "output"):
        pass
    with locked(path):
        pass
    assert not [*tmp_path.iterdir()]


def test_a_lock_that_cannot_be_made_names_the_option(tmp_path):
    (tmp_path / ".directory.lock").mkdir()
    with (
        pytest.raises(OSError, match=r"^output: .*directory cannot be locked: "),
        locked(tmp_path / "directory", "output"),
    ):
        pass
