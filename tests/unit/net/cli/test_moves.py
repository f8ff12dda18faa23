"""Rates as a user writes them, and how much is left of moves."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from barnabas.net.cli.verbs.partitions import Progress, bytes_per_second
from barnabas.net.wire.protocol.responses import CatchingUp, PartitionMove


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("10MB", 10_000_000), ("500K", 500_000), ("1000000", 1_000_000), ("2gb", 2_000_000_000), ("7MB/s", 7_000_000)],
)
def test_rates(text: str, wanted: int) -> None:
    assert bytes_per_second(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "MB", "-1K", "1.5M", "10 apples"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="10MB or 500K"):
        bytes_per_second(text)


def moving(*bytes_left: int) -> list[PartitionMove]:
    return [
        PartitionMove(
            topic="t",
            partition=number,
            leader=0,
            replicas=(1, 0),
            adding=(1,),
            removing=(0,),
            catching_up=(CatchingUp(node_id=1, records_left=1, bytes_left=left),),
        )
        for number, left in enumerate(bytes_left)
    ]


def test_the_time_that_is_left_is_told_from_the_speed_so_far() -> None:
    progress = Progress()
    assert progress.sentence(moving(600, 400), 0.0) == "2 partitions move, 1000 bytes left"
    assert progress.sentence(moving(500, 400), 1.0) == "2 partitions move, 900 bytes left, about 9 s"
    assert progress.sentence(moving(500, 400), 2.0) == "2 partitions move, 900 bytes left, about 18 s"  # held back
    assert progress.sentence(moving(500), 5.0) == "1 partitions move, 500 bytes left, about 5 s"
    assert progress.sentence(moving(-1), 6.0) == "1 partitions move, 0 bytes left, about 0 s"
