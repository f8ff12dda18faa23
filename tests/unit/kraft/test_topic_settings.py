"""What a setting of a topic means, also where an old log has one that cannot be set any more."""

import pytest

from barnabas.kraft.metadata.controller_settings import ControllerSettings
from barnabas.kraft.metadata.topic_settings import min_insync


@pytest.mark.parametrize(
    ("value", "meant"), [(None, 2), ("", 2), ("two", 2), ("-1", 2), ("1.5", 2), ("0", 1), ("1", 1), ("3", 3)]
)
def test_min_insync_replicas_is_a_number_from_1_or_that_of_the_cluster(value: str | None, meant: int) -> None:
    assert min_insync(value, ControllerSettings(min_insync_replicas=2)) == meant
