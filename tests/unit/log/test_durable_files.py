"""What a power loss leaves after operations on real files, by the calls that the operating system got."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.log.disk.files import RealFiles
from barnabas.log.disk.secret_files import write_secret

FILES = RealFiles()


class Platter:
    """What is on the disk for sure: of a file, its bytes at its last fsync; of a folder, its names at its last fsync."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._flushing(getattr(os, name)))
        patch.setattr(os, "replace", self._renaming(os.replace))

    def _flushing(self, genuine: Callable[[int], None]) -> Callable[[int], None]:
        def flush(descriptor: int) -> None:
            genuine(descriptor)
            inode = os.fstat(descriptor).st_ino
            for path in (self._folder, *self._folder.rglob("*")):
                if path.stat().st_ino != inode:
                    continue
                if path.is_dir():
                    self._names[inode] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
                else:
                    self._bytes[inode] = path.read_bytes()

        return flush

    def _renaming(self, genuine: Callable[[str, str], None]) -> Callable[[str, str], None]:
        """A rename may reach the disk before everything that comes later, so the file must be there."""

        def rename(source: str, target: str) -> None:
            assert self._bytes.get(Path(source).stat().st_ino) == Path(source).read_bytes()
            genuine(source, target)

        return rename

    def has(self, path: Path) -> bool:
        while path != self._folder:
            names = self._names.get(path.parent.stat().st_ino, {})
            if names.get(path.name) != path.stat().st_ino:
                return False
            path = path.parent
        return True

    def read(self, path: Path) -> bytes | None:
        return self._bytes.get(path.stat().st_ino) if self.has(path) else None


@pytest.fixture
def platter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platter:
    return Platter(tmp_path, monkeypatch)


def test_a_file_that_is_replaced_is_on_the_disk_before_and_after_it_has_its_name(
    platter: Platter, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    for data in (b"first", b"second, longer", b""):
        FILES.write_atomically(str(path), data)
        assert platter.read(path) == data


def test_a_secret_that_is_replaced_is_on_the_disk(platter: Platter, tmp_path: Path) -> None:
    write_secret(tmp_path / "key", b"secret")
    assert platter.read(tmp_path / "key") == b"secret"


def test_what_was_appended_is_on_the_disk_after_a_flush(platter: Platter, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    file = FILES.open_append(str(path))
    file.append(b"a")
    assert platter.read(path) is None
    file.flush()
    FILES.sync_dir(str(tmp_path))
    file.append(b"b")
    assert platter.read(path) == b"a"
    file.flush()
    assert platter.read(path) == b"ab"
    file.close()


def test_new_folders_are_on_the_disk_with_their_parents(platter: Platter, tmp_path: Path) -> None:
    FILES.make_dirs(str(tmp_path / "a" / "b" / "c"))
    assert platter.has(tmp_path / "a" / "b" / "c")
    FILES.make_dirs(str(tmp_path / "d" / "e"), durable=False)
    assert platter.has(tmp_path / "d") and not platter.has(tmp_path / "d" / "e")


def test_reserved_space_is_on_the_disk(platter: Platter, tmp_path: Path) -> None:
    FILES.reserve(str(tmp_path / "ballast"), 5_000)
    assert platter.read(tmp_path / "ballast") == bytes(5_000)


def test_pages_of_a_file_are_dropped_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"x")
    asked = list[tuple[int, int, int]]()
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *arguments: asked.append(arguments))
    FILES.drop_cached(str(tmp_path / "f"))
    assert asked == [(0, 0, os.POSIX_FADV_DONTNEED)]
