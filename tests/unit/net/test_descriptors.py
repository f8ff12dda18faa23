"""The share of clients in the descriptors of a process."""

import resource
import subprocess
import sys

import pytest

from barnabas.log.segment.open_segments import MAX_OPEN_SEALED_SEGMENTS
from barnabas.net.base.descriptors import MAX_RESERVED_DESCRIPTORS, DescriptorLimit


@pytest.mark.parametrize(
    ("total", "for_clients"),
    [(1, 1), (256, 128), (1_024, 512), (20_000, 10_000), (1_048_576, 1_048_576 - MAX_RESERVED_DESCRIPTORS)],
)
def test_a_part_is_kept_from_clients(total: int, for_clients: int) -> None:
    assert DescriptorLimit(total=total).for_clients == for_clients


@pytest.mark.parametrize(("total", "for_strangers"), [(64, 8), (256, 8), (1_024, 32), (2_048, 64), (1_048_576, 64)])
def test_ports_without_clients_hold_few_strangers(total: int, for_strangers: int) -> None:
    assert DescriptorLimit(total=total).for_strangers == for_strangers


@pytest.mark.parametrize("total", [64, 128, 256, 1_024, 4_096, 1_048_576])
def test_sealed_segments_leave_most_of_the_reserve_to_others(total: int) -> None:
    """Of the reserve: spare ones, two ports of strangers, active segments, the quorum, brokers."""
    limit = DescriptorLimit(total=total)
    assert 1 <= limit.for_sealed_segments <= MAX_OPEN_SEALED_SEGMENTS
    assert limit.for_sealed_segments <= (limit.total - limit.for_clients) / 4


def test_the_soft_limit_becomes_the_hard_one() -> None:
    """In a process of its own: the limit is a property of the process."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200));"
        "from barnabas.net.base.descriptors import raise_descriptor_limit; print(raise_descriptor_limit().total)"
    )
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 200
    told = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert told.stdout.strip() == "200"
