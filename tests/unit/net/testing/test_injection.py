"""What a user is told about a broker that does not come back."""

from collections.abc import Sequence
from typing import cast

import pytest

from barnabas.net.local_cluster import ClusterError
from barnabas.net.testing.brokers.backends import Address, Backend
from barnabas.net.testing.faults.orders import Order
from barnabas.net.testing.injection import Injection


class Deaf:
    """A process that runs, and whose socket for orders is gone."""

    def addresses(self, node_id: int) -> Sequence[Address]:
        return [("127.0.0.1", node_id)]

    def is_running(self, node_id: int) -> bool:
        return True

    def order(self, node_id: int, order: Order) -> int:
        raise FileNotFoundError(2, "No such file or directory")


def test_a_broker_that_takes_no_orders_is_told_apart_from_one_that_is_fenced() -> None:
    injection = Injection(cast(Backend, Deaf()), [0], timeout_s=0)
    with pytest.raises(
        ClusterError, match="broker 0 takes part; it takes no orders: .*No such file.*; faults that hold: none"
    ):
        injection.wait_until_ready([0])
