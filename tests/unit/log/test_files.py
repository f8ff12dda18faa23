import errno
import os
import stat
from pathlib import Path

import pytest

from barnabas.log.disk.files import RealFiles
from barnabas.log.vocabulary.errors import DiskFailedError, StorageError

FILES = RealFiles()


def test_append_read_truncate(tmp_path):
    file = FILES.open_append(str(tmp_path / "f"))
    file.append(b"abc")
    file.append(memoryview(bytearray(b"defg")))
    assert file.size_bytes == 7
    assert file.read_at(2, 3) == b"cde"
    assert file.read_at(5, 100) == b"fg"
    file.truncate(2)
    file.append(b"X")
    file.flush()
    file.close()
    assert FILES.open_append(str(tmp_path / "f")).size_bytes == 3
    assert FILES.read_bytes(str(tmp_path / "f")) == b"abX"


def break_writes(patch, code, *, whole_bytes=2):
    """Take the first bytes of the next write and refuse the rest. Python's own `os.write` is the port here."""
    real_write = os.write
    calls = []

    def write(descriptor, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real_write(descriptor, bytes(data[:whole_bytes]))
        raise OSError(code, os.strerror(code))

    patch.setattr(os, "write", write)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_nothing_of_the_write_and_the_file_usable(tmp_path, monkeypatch, code):
    file = FILES.open_append(str(tmp_path / "f"))
    file.append(b"before")
    with monkeypatch.context() as patch:
        break_writes(patch, code)
        with pytest.raises(StorageError, match="free space"):
            file.append(b"after")
    assert FILES.read_bytes(str(tmp_path / "f")) == b"before"
    assert (file.size_bytes, file.failed) == (6, False)
    file.append(b", again")
    file.flush()
    assert FILES.read_bytes(str(tmp_path / "f")) == b"before, again"


def test_a_full_disk_where_the_write_cannot_be_undone_ends_writes(tmp_path, monkeypatch):
    file = FILES.open_append(str(tmp_path / "f"))

    def refuse(descriptor, size):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        break_writes(patch, errno.ENOSPC)
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(StorageError, match="the disk is full"):
            file.append(b"after")
    assert (file.size_bytes, file.failed) == (0, True)
    with pytest.raises(StorageError, match="restart the broker"):
        file.append(b"x")


def test_a_failing_disk_ends_writes(tmp_path, monkeypatch):
    file = FILES.open_append(str(tmp_path / "f"))
    file.append(b"before")
    with monkeypatch.context() as patch:
        break_writes(patch, errno.EIO)
        with pytest.raises(StorageError, match="the disk is failing"):
            file.append(b"after")
    assert FILES.read_bytes(str(tmp_path / "f")) == b"before"
    assert (file.size_bytes, file.failed) == (6, True)
    assert file.read_at(0, 6) == b"before"
    for action in (lambda: file.append(b"x"), file.flush, lambda: file.truncate(0)):
        with pytest.raises(StorageError, match="restart the broker"):
            action()


def test_a_failed_flush_ends_reads_too(tmp_path, monkeypatch):
    file = FILES.open_append(str(tmp_path / "f"))
    file.append(b"x")

    def refuse(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(StorageError, match="the disk is failing"):
            file.flush()
    with pytest.raises(StorageError):
        file.flush()
    with pytest.raises(StorageError):
        file.read_at(0, 1)


def test_errors_name_path_and_cure(tmp_path):
    with pytest.raises(StorageError, match=r"missing.*the file is missing"):
        FILES.read_bytes(str(tmp_path / "missing"))
    with pytest.raises(StorageError):
        FILES.open_append(str(tmp_path / "missing"), create=False)
    with pytest.raises(StorageError):
        FILES.list_dir(str(tmp_path / "missing"))


def test_folders_and_names(tmp_path):
    deep = str(tmp_path / "a" / "b" / "c")
    FILES.make_dirs(deep)
    FILES.make_dirs(deep)
    FILES.write_atomically(f"{deep}/f", b"one")
    FILES.write_atomically(f"{deep}/f", b"two")
    assert FILES.list_dir(deep) == ["f"]
    assert bytes(FILES.map_readonly(f"{deep}/f")) == b"two"
    FILES.write_atomically(f"{deep}/empty", b"")
    assert FILES.map_readonly(f"{deep}/empty") == b""
    FILES.rename(f"{deep}/f", f"{deep}/g")
    FILES.sync_dir(deep)
    assert FILES.size_bytes(f"{deep}/g") == 3
    FILES.remove(f"{deep}/g")
    FILES.remove(f"{deep}/g")
    FILES.remove_tree(str(tmp_path / "a"))
    FILES.remove_tree(str(tmp_path / "a"))
    assert not FILES.exists(str(tmp_path / "a"))
    assert FILES.disk_usage(str(tmp_path)).total_bytes > 0
    assert FILES.boot_id()


def test_a_file_is_closed_with_its_last_reference(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    file = FILES.open_append(str(tmp_path / "f"))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del file
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_the_disk_refuses_to_look_for_is_not_missing(tmp_path, monkeypatch):
    """EIO and EACCES counted as "it is not there", and a log began anew beside its records. Python's own `os.stat` is the
    port here."""
    assert not FILES.exists(str(tmp_path / "none" / "below"))
    (tmp_path / "file").touch()
    assert FILES.exists(str(tmp_path / "file")) and not FILES.exists(str(tmp_path / "file" / "below"))

    def refused(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refused)
        with pytest.raises(DiskFailedError, match=r"cannot look for .*/file: Input/output error"):
            FILES.exists(str(tmp_path / "file"))


def test_only_the_user_of_the_broker_may_enter_a_new_folder(tmp_path: Path) -> None:
    RealFiles().make_dirs(str(tmp_path / "data" / "t-0"))
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("data", "data/t-0")] == [0o700, 0o700]
