"""Files appear whole or not at all."""

import errno
import tempfile

import pytest

from vaswani_transformer.files import make_directory, require_directory, write_whole


def test_a_file_is_replaced_whole(tmp_path):
    write_whole(tmp_path / "results.json", "before")
    with open(tmp_path / "results.json", encoding="utf-8") as before:
        write_whole(tmp_path / "results.json", "grün\n")
        assert before.read() == "before"
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("results.json", "grün\n".encode())]


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(tmp_path):
    write_whole(tmp_path / "results.json", "before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "results.json", "after \udcff")
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == "before"


def test_a_file_in_place_of_a_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    for name in ("file", "file/below", "file/a/b", "link"):
        with pytest.raises(NotADirectoryError, match=r"^output_dir: \S+/(file|link) is not a directory; name a dir"):
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
