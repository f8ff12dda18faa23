"""The newest records of a slot against a list of all of them: what is kept is the end of it, without a hole."""

from random import Random

import pytest

from barnabas.kraft.group_state import offsets_log
from barnabas.kraft.group_state.offsets_log import SlotTail
from barnabas.kraft.metadata.records import OffsetCommitRecord, Record, RemoveOffsetRecord

TEXT = "x" * 50
MOST_RECORDS, MOST_TEXT_BYTES = 20, 400


def commit(metadata: str) -> Record:
    return OffsetCommitRecord(
        slot=1, coordinator_epoch=1, group_id="g", topic="t", partition=0, offset=1, leader_epoch=-1,
        metadata=metadata, commit_timestamp_ms=1,
    )  # fmt: skip


REMOVED: Record = RemoveOffsetRecord(slot=1, coordinator_epoch=1, group_id="g", topic="t", partition=0)


@pytest.mark.parametrize("seed", range(40))
def test_the_end_of_the_slot_is_kept_up_to_its_limits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_log, "MAX_TAIL_RECORDS", MOST_RECORDS)
    monkeypatch.setattr(offsets_log, "MAX_TAIL_TEXT_BYTES", MOST_TEXT_BYTES)
    rng, tail, known, end = Random(seed), SlotTail(), list[tuple[int, Record]](), 0
    assert (tail.start_offset, tail.end_offset) == (0, 0)
    for _ in range(100):
        if rng.random() < 0.03:
            snapshot = rng.randint(max(0, end - 2), end + 3)
            tail.restart(snapshot)
            known, end = [], max(end, snapshot + 1)
            assert (tail.start_offset, tail.end_offset) == (end, end)
        log_offset = end + rng.choice([0, 0, 0, 1, 5])
        record = rng.choice([REMOVED, commit(""), commit(TEXT), commit("\u00e4" * 20)])
        tail.append(log_offset, record)
        known.append((log_offset, record))
        end = log_offset + 1
        found = [(entry.log_offset, entry.record) for entry in tail.after(0, 10**6)]
        assert found == known[len(known) - len(found) :] and tail.end_offset == end
        assert all(log_offset < tail.start_offset for log_offset, _ in known[: len(known) - len(found)])
        assert all(log_offset >= tail.start_offset for log_offset, _ in found)
        assert is_within(found) and (len(found) == len(known) or not is_within(known[-len(found) - 1 :]))
        since, limit = rng.randint(0, end), rng.randint(0, 5)
        wanted = [item for item in found if item[0] >= since][:limit]
        assert [(entry.log_offset, entry.record) for entry in tail.after(since, limit)] == wanted


def is_within(records: list[tuple[int, Record]]) -> bool:
    texts = [record.metadata for _, record in records if isinstance(record, OffsetCommitRecord)]
    sizes = [len(text) if text.isascii() else 4 * len(text) for text in texts]
    return len(records) <= MOST_RECORDS and sum(sizes) <= MOST_TEXT_BYTES
