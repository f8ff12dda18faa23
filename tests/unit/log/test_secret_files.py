"""Folders that every user of the machine may write, and links in a data folder."""

from pathlib import Path

import pytest

from barnabas.log.disk.files import RealFiles
from barnabas.log.disk.secret_files import open_to_all, refuse_links
from barnabas.log.vocabulary.errors import StorageError


@pytest.mark.parametrize(
    ("mode", "is_open"), [(0o700, False), (0o755, False), (0o775, False), (0o1777, False), (0o777, True), (0o702, True)]
)
def test_folders_that_everyone_may_write_are_told(tmp_path: Path, mode: int, is_open: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    missing = tmp_path / "missing"
    assert open_to_all([str(missing), str(folder)]) == ([str(folder)] if is_open else [])


@pytest.mark.parametrize("place", ["orders-0", "orders-0/00000000000000000000.log", "meta.properties"])
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_link_in_a_data_folder_is_refused_and_named(tmp_path: Path, place: str, is_broken: bool) -> None:
    folder, target = tmp_path / "data", tmp_path / "target"
    (folder / "payments-0").mkdir(parents=True)
    (folder / "payments-0" / "00000000000000000000.log").touch()
    if not is_broken:
        target.mkdir()
    as_linked = tmp_path / "volume"
    as_linked.symlink_to(folder)
    refuse_links([str(as_linked), str(tmp_path / "missing")])
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).symlink_to(target)
    with pytest.raises(StorageError, match=f"{folder / place} is a symbolic link: remove it"):
        refuse_links([str(folder)])


def test_a_link_that_is_made_later_is_not_followed(tmp_path: Path) -> None:
    target, files = tmp_path / "target", RealFiles()
    target.write_bytes(b"of somebody else")
    for name in ("segment", "checkpoint.tmp", ".lock", "ballast"):
        (tmp_path / name).symlink_to(target)
    for write in (
        lambda: files.open_append(str(tmp_path / "segment")),
        lambda: files.write_atomically(str(tmp_path / "checkpoint"), b"ours"),
        lambda: files.lock(str(tmp_path / ".lock")),
        lambda: files.reserve(str(tmp_path / "ballast"), 4096),
    ):
        with pytest.raises(StorageError, match="it is a symbolic link"):
            write()
    assert target.read_bytes() == b"of somebody else"
