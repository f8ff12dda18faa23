"""What a user is told who asks for a cluster that there cannot be."""

from typing import Any

import pytest

from barnabas.net.testing.cluster import Cluster


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"brokers": 0}, "brokers=0: give 1 to 100"),
        ({"brokers": "3"}, "brokers='3': give an integer, such as brokers=3"),
        ({"brokers": True}, "brokers=True: give an integer"),
        ({"brokers": None}, "brokers=None: give an integer"),
        ({"voters": 4}, "voters=4: give 1 to 3, the number of brokers"),
        ({"voters": "1"}, "voters='1': give an integer"),
        ({"timeout_s": "1"}, "timeout_s='1': give seconds as a number"),
        ({"timeout_s": -1}, "timeout_s=-1: give more than 0 seconds"),
        ({"timeout_s": float("nan")}, "timeout_s=nan: give more than 0"),
        ({"backend": "docker"}, "there is no backend 'docker'; choose one of in-process, processes"),
        ({"config": "num.partitions"}, "config='num.partitions': give keys of brokers as a dictionary"),
        ({"config": {"node.id": "1"}}, "node.id=1: the cluster sets this key itself"),
        ({"broker_config": {"0": {}}}, "there is no broker '0'; give brokers 0 to 2, as integers"),
        ({"broker_config": {3: {}}}, "there is no broker 3; give brokers 0 to 2"),
        ({"broker_config": {0: "x"}}, r"broker_config\[0\]='x': give keys of brokers"),
        ({"broker_config": []}, r"broker_config=\[\]: give a dictionary by broker"),
        ({"users": ["alice"]}, r"users=\['alice'\]: give a dictionary, {name: password}"),
        ({"users": {"alice": 1}}, "users: name and password of 'alice' must be texts"),
    ],
)
def test_an_argument_that_cannot_be_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        Cluster(**options)
