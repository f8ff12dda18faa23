from barnabas.log.segment.retention import SegmentAge, expired_segments
from barnabas.log.settings.config import LogConfig

SEGMENTS = [
    SegmentAge(base_offset=number * 10, next_offset=number * 10 + 10, size_bytes=100, newest_ms=number * 1000)
    for number in range(5)
]


def expired(config, *, start=0, high_watermark=50, now_ms=5000):
    return expired_segments(
        iter(SEGMENTS),
        config=config,
        log_start_offset=start,
        high_watermark=high_watermark,
        now_ms=now_ms,
        log_bytes=500,
    )


def test_by_age():
    assert expired(LogConfig(retention_ms=3000)) == 2
    assert expired(LogConfig(retention_ms=0)) == 5
    assert expired(LogConfig(retention_ms=-1)) == 0


def test_by_size():
    assert expired(LogConfig(retention_ms=-1, retention_bytes=250)) == 2
    assert expired(LogConfig(retention_ms=-1, retention_bytes=500)) == 0
    assert expired(LogConfig(retention_ms=-1, retention_bytes=0)) == 5


def test_never_above_the_high_watermark():
    assert expired(LogConfig(retention_ms=0), high_watermark=29) == 2


def test_a_compacted_log_keeps_all_but_what_lies_below_its_start():
    config = LogConfig(cleanup_policy=("compact",), retention_ms=0, retention_bytes=0)
    assert expired(config) == 0
    assert expired(config, start=20) == 2
