"""`scripts/dump-log`: what it shows of whole files, and that damage is shown where it is and told by the exit code."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from barnabas.kraft.group_state.group_slots import GroupSlots
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.records import RecordBatch, TopicRecord, encode_batch
from barnabas.kraft.node.snapshot import encode_snapshot
from barnabas.kraft.quorum.journal_format import RecordKind, encode_record
from barnabas.kraft.quorum.snapshot_format import pack_snapshot
from barnabas.log.format import record_codec
from barnabas.log.format.record_batch import patch
from barnabas.log.segment.offset_index import ENTRY as OFFSET_ENTRY
from barnabas.log.segment.time_index import ENTRY as TIME_ENTRY

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "dump_log.py"
SEGMENT = "00000000000000000007.log"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dump_log", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch(offset: int, *values: bytes) -> bytes:
    data = bytearray(record_codec.encode_batch(list(values), timestamps_ms=1_000, keys=[b"k"] * len(values)))
    patch(data, 0, base_offset=offset, leader_epoch=3)
    return bytes(data)


def test_the_log_of_the_broker_itself_is_no_damaged_segment(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broker.log").write_text("2026-11-29T23:15:37.460+00:00 INFO barnabas.replication event=leads\n")
    (tmp_path / SEGMENT).write_bytes(batch(7, b"one"))
    assert tool.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert SEGMENT in out and "broker.log" not in out and "DAMAGED" not in out


def test_segments_and_their_records(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / SEGMENT).write_bytes(batch(7, b"one", b"x" * 100) + batch(9, b"three"))
    assert tool.main(["--records", str(tmp_path / SEGMENT)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "position=0 offsets=7..8 records=2" in lines[1] and "epoch=3" in lines[1]
    assert lines[2] == "  offset=7 timestamp=1000 key='k' value='one'"
    assert lines[3].endswith("' ... (100 bytes)")
    assert "offsets=9..9" in lines[4]


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_batch_ends_the_segment(
    damage: str, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = batch(7, b"one"), bytearray(batch(8, b"two"))
    if damage == "cut":
        del second[-3:]
    else:
        second[-1] ^= 1
    (tmp_path / SEGMENT).write_bytes(first + second)
    assert tool.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith(f"DAMAGED position={len(first)} left={len(second)}")


def test_indexes(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "00000000000000000007.index").write_bytes(OFFSET_ENTRY.pack(2, 4096) + b"\x00")
    (tmp_path / "00000000000000000007.timeindex").write_bytes(TIME_ENTRY.pack(1_000, 2))
    assert tool.main([str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "relative_offset=2 position=4096\nDAMAGED 1 bytes behind the last whole entry\n" in shown
    assert "timestamp=1000 relative_offset=2\n" in shown


def test_the_quorums_journal_with_its_metadata(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = encode_batch(RecordBatch(controller_epoch=4, records=(TopicRecord(name="orders", topic_id="ab"),)))
    journal = encode_record(RecordKind.ENTRY, 1, 4, 0, b"\x01") + encode_record(
        RecordKind.ENTRY, 2, 4, 38, b"\x00" + command
    )
    folder = tmp_path / "__cluster_metadata"
    folder.mkdir()
    (folder / "quorum.journal").write_bytes(journal)
    assert tool.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "position=0 entry index=1 term=4 durable=0",
        "  no-op of a new leader",
        "position=38 entry index=2 term=4 durable=38",
        "  TopicRecord(name='orders', topic_id='ab')",
    ]
    (folder / "quorum.journal").write_bytes(journal[:-1])
    assert tool.main([str(tmp_path)]) == 1
    assert "DAMAGED position=38" in capsys.readouterr().out


def test_a_snapshot_of_the_quorum(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = MetadataImage(cluster_id="abc", controller_epoch=4)
    snapshot = pack_snapshot((b"\x01", 9, 4), (b"\x01", 8, 4), encode_snapshot(image, GroupSlots()))
    path = tmp_path / "quorum.snapshot"
    path.write_bytes(snapshot)
    assert tool.main([str(path)]) == 0
    assert "last_index=9 cluster=abc controller_epoch=4" in capsys.readouterr().out
    path.write_bytes(snapshot[:-1])
    assert tool.main([str(path)]) == 1


def test_checkpoints_are_shown_as_they_are_and_strange_files_left_out(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 42\n")
    (tmp_path / "photo.jpg").write_bytes(b"\xff")
    assert tool.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["0", "1", "orders 0 42"]
    assert tool.main([str(tmp_path / "photo.jpg")]) == 2
    assert tool.main([str(tmp_path / "missing.log")]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_nothing_is_changed(tool: ModuleType, tmp_path: Path) -> None:
    files = {SEGMENT: batch(7, b"one")[:-1], "quorum.journal": b"\x00" * 50, "quorum.snapshot": b"\xb1QS1"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert tool.main([str(tmp_path)]) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
