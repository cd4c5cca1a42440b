"""Files and directories appear complete or not at all, and what has changed is found."""

import hashlib
import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import limit_of_files, start_python

from vaswani_transformer.system.files import atomic_directory, atomic_remove, atomic_write, locked, read_json
from vaswani_transformer.system.manifests import Manifest, file_digest, find_damage, require_same_origin


def test_a_file_is_replaced_whole(tmp_path):
    atomic_write(tmp_path / "results.json", "before")
    with open(tmp_path / "results.json", encoding="utf-8") as before:
        atomic_write(tmp_path / "results.json", "grün\n")
        assert before.read() == "before"
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("results.json", "grün\n".encode())]


def test_a_symbolic_link_stays_and_its_file_is_replaced_with_the_same_permissions(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "file"
    (tmp_path / "link").symlink_to(file)
    atomic_write(tmp_path / "link", "one")
    file.chmod(0o600)
    atomic_write(tmp_path / "link", "two")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("two", 0o600)
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "elsewhere") == {"file"}


def test_a_pipe_is_written_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        received = pool.submit(pipe.read_text)
        atomic_write(pipe, "text")
        assert received.result(timeout=20) == "text"
    assert pipe.is_fifo()


def test_the_current_directory_can_be_locked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with locked(Path()), pytest.raises(ValueError, match=r"^output_dir: another process"), locked(tmp_path):
        pass


def test_what_exceeds_a_limit_of_the_size_of_files_is_named(tmp_path):
    with limit_of_files(1000), pytest.raises(OSError, match=r"File too large: '.*/out\.txt'$"):
        atomic_write(tmp_path / "out.txt", 2000 * "x")
    assert not names(tmp_path)


def write(output: Path, name: str = "first", interrupted: bool = False, replace: bool = False) -> None:
    with atomic_directory(output, replace=replace) as directory:
        (directory / name).touch()
        if interrupted:
            raise KeyboardInterrupt
        (directory / "last").touch()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


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
from vaswani_transformer.system.files import atomic_directory
with atomic_directory(Path(sys.argv[1])) as directory:
    (directory / "first").touch()
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def begin(tmp_path_factory) -> Callable[[Path, str], subprocess.Popen]:
    script = tmp_path_factory.mktemp("script") / "writes.py"
    script.write_text(WRITES, encoding="utf-8")
    return lambda output, fate: start_python([script, output, fate], stdin=subprocess.PIPE)


@pytest.mark.system
def test_what_a_killed_process_left_is_deleted(tmp_path, begin):
    begin(tmp_path / "out", "killed").communicate()
    assert len(names(tmp_path)) == 2  # its work, and the file of its lock
    write(tmp_path / "out")
    assert names(tmp_path) == {"out"}


@pytest.mark.system
def test_a_directory_that_another_process_makes_is_refused_and_its_work_stays(tmp_path, begin):
    output = tmp_path / "out"
    with begin(output, "lives") as other:
        staged = Path(other.stdout.readline().strip())
        for replace in (False, True):
            message = f"^output: another process is at work in {re.escape(str(output))}; wait for it"
            with pytest.raises(ValueError, match=message):
                write(output, "second", replace=replace)
        assert staged.is_dir()
        other.communicate("")
    assert names(output) == {"first"}
    assert names(tmp_path) == {"out"}


def test_a_directory_that_appears_meanwhile_stays(tmp_path):
    with pytest.raises(OSError, match="not empty"), atomic_directory(tmp_path / "out"):
        (tmp_path / "out" / "theirs").mkdir(parents=True)
    assert names(tmp_path) == {"out"}
    assert names(tmp_path / "out") == {"theirs"}


def test_a_directory_is_removed_by_way_of_another_folder(tmp_path):
    for _ in range(2):
        write(tmp_path / "out")
        atomic_remove(tmp_path / "out", tmp_path / "removed")
        assert names(tmp_path) == {"removed"}
        assert not names(tmp_path / "removed")


def test_a_manifest_finds_what_has_changed(tmp_path):
    (tmp_path / "below").mkdir()
    files = [tmp_path / "a", tmp_path / "below" / "b"]
    for file in (*files, tmp_path / "config.json"):
        file.write_bytes(b"content")
    Manifest.from_files(tmp_path, notes={"step": 3}).save(tmp_path)
    assert Manifest.load(tmp_path).notes == {"step": 3}
    (tmp_path / "config.json").write_text('{"alignment_heads": [[0, 1]]}', encoding="utf-8")  # may change
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
    for content in ('{"files"', "{}", '{"files": []}', '{"files": {"a": {"size": 1}}}', '{"files": {"a": null}}'):
        manifest.write_text(content)
        assert find_damage(tmp_path).startswith("manifest.json is damaged: ")
    manifest.unlink()
    assert find_damage(tmp_path) == "manifest.json is missing"
    assert find_damage(tmp_path / "nothing") == "is missing"


def test_a_digest_is_that_of_the_content_though_a_file_that_does_not_change_is_read_once(tmp_path, monkeypatch):
    path, hours_later = tmp_path / "a", time.time_ns() + 10**13
    path.write_bytes(b"one")
    monkeypatch.setattr(time, "time_ns", lambda: hours_later)
    assert file_digest(path) == hashlib.sha256(b"one").hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("it was read again"))
        assert file_digest(path) == hashlib.sha256(b"one").hexdigest()
    time.sleep(0.02)
    path.write_bytes(b"two")
    assert file_digest(path) == hashlib.sha256(b"two").hexdigest()


def test_a_damaged_json_file_is_named(tmp_path):
    path = tmp_path / "some.json"
    for content, complaint in ((b'{"a": 1,\n"b": }', "Expecting value: line 2 column 6"), (b"[1]", "it holds no JSON")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(f"{path} is damaged: {complaint}")):
            read_json(path)


def test_manifests_are_compared_by_what_both_have_and_files_by_their_content():
    before = {"size": 1, "left": 0, "files": [{"file": "/a", "sha256": "x"}, {"name": "hub", "split": "train"}]}
    same = {"size": 1, "right": 0, "files": [{"file": "/elsewhere", "sha256": "x"}, {"name": "hub", "split": "train"}]}
    require_same_origin(before, same, "differs in", "stop")
    now = {"size": 2, "files": [{"file": "/a", "sha256": "y"}, {"name": "hub", "split": "train"}]}
    with pytest.raises(
        ValueError, match=r"^x differs in size \(1 then, 2 now\), files \(/a hub then, /a hub now\); y$"
    ):
        require_same_origin(before, now, "x differs in", "y")
