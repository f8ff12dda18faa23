"""Folders that every user of the machine may write."""

from pathlib import Path

import pytest

from barnabas.log.disk.secret_files import open_to_all


@pytest.mark.parametrize(
    ("mode", "is_open"), [(0o700, False), (0o755, False), (0o775, False), (0o1777, False), (0o777, True), (0o702, True)]
)
def test_folders_that_everyone_may_write_are_told(tmp_path: Path, mode: int, is_open: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    missing = tmp_path / "missing"
    assert open_to_all([str(missing), str(folder)]) == ([str(folder)] if is_open else [])
