import pytest

from barnabas.log.settings.config import TOPIC_KEYS, LogConfig
from barnabas.log.vocabulary.errors import InvalidConfigError


def test_defaults_stand_in_the_table():
    assert LogConfig.from_map({name: row.default_text for name, row in TOPIC_KEYS.items()}) == LogConfig()
    assert LogConfig.from_map(LogConfig().to_map()) == LogConfig()
    assert all(found.documentation for found in TOPIC_KEYS.values())


def test_overrides_stand_on_the_defaults_that_are_given():
    defaults = LogConfig.from_map({"segment.bytes": "2000"})
    config = LogConfig.from_map({"cleanup.policy": "compact, delete", "preallocate": "TRUE"}, defaults)
    assert (config.segment_bytes, config.cleanup_policy, config.preallocate) == (2000, ("compact", "delete"), True)
    assert config.is_compacted
    assert config.is_deleted_by_retention


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(InvalidConfigError, match=r"did you mean retention\.ms"):
        LogConfig.from_map({"retention.msec": "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("segment.bytes", "13"), ("segment.bytes", "2147483648"), ("segment.bytes", "1.5"), ("retention.ms", "-2"),
     ("cleanup.policy", "shred"), ("cleanup.policy", ""), ("min.cleanable.dirty.ratio", "1.1"), ("preallocate", "yes"),
     ("compression.type", "rar"), ("min.insync.replicas", "0"), ("min.cleanable.dirty.ratio", "nan"),
     ("retention.ms", "1_000"), ("retention.ms", "٣")],
)  # fmt: skip
def test_a_wrong_value_names_the_rule(name, value):
    with pytest.raises(InvalidConfigError, match="must be"):
        LogConfig.from_map({name: value})


def test_broker_names():
    assert TOPIC_KEYS["retention.ms"].broker_key == "log.retention.ms"
    assert TOPIC_KEYS["segment.index.bytes"].broker_key == "log.index.size.max.bytes"
