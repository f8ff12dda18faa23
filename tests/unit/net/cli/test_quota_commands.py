"""`barnabas quota ...` on a cluster in memory."""

import json
from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.log.vocabulary.access.quotas import DEFAULT, QuotaEntity

ALICE = QuotaEntity(user="alice")


def test_quotas_are_set_listed_and_removed(run: Any, cluster: FakeCluster) -> None:
    code, out, _ = run("quota", "set", "--user", "alice", "producer_byte_rate=1000000", "request-percentage=2.5")
    assert code == 0 and out.splitlines()[0].split() == ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"]
    assert cluster.quotas.held == {ALICE: {"producer_byte_rate": 1e6, "request_percentage": 2.5}}
    assert run("quota", "set", "--user", "alice", "--client-id-default", "consumer_byte_rate=5")[0] == 0
    assert run("quota", "set", "--ip", "10.0.0.1", "connection_creation_rate=5")[0] == 0
    assert QuotaEntity(user="alice", client_id=DEFAULT) in cluster.quotas.held
    rows = json.loads(run("quota", "list", "--user", "alice", "-f", "json")[1])
    assert [(row["client-id"], row["quota"], row["value"]) for row in rows] == [
        ("", "producer_byte_rate", 1_000_000),
        ("", "request_percentage", 2.5),
        ("<default>", "consumer_byte_rate", 5),
    ]
    assert len(run("quota", "list")[1].splitlines()) == 5
    assert run("quota", "remove", "--user", "alice", "producer_byte_rate")[0] == 0
    assert cluster.quotas.held[ALICE] == {"request_percentage": 2.5}
    assert run("quota", "remove", "--user", "alice")[0] == 0 and ALICE not in cluster.quotas.held
    code, _, err = run("quota", "remove", "--user", "alice")
    assert code == 0 and "nothing was removed: user 'alice' has no such quota" in err
    assert len(cluster.quotas.held) == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("set", "producer_byte_rate=1"), "say whose quota: --user"),
        (("set", "--user", "a", "produce_byte_rate=1"), "did you mean producer_byte_rate?"),
        (("set", "--user", "a", "xyz=1"), "the quotas are producer_byte_rate"),
        (("set", "--user", "a", "producer_byte_rate"), "write producer_byte_rate=1000000"),
        (("set", "--user", "a", "producer_byte_rate=0"), "must be greater than 0"),
        (("set", "--user", "a", "connection_creation_rate=1"), "has no quota 'connection_creation_rate'"),
        (("set", "--ip", "here", "connection_creation_rate=1"), "not the address of clients"),
        (("set", "--user", "a", "--user-default", "producer_byte_rate=1"), "not allowed with"),
        (("set", "--user", "", "producer_byte_rate=1"), "use the option that ends in -default"),
        (("remove",), "say whose quota"),
    ],
)
def test_mistakes_are_explained(run: Any, cluster: FakeCluster, given: tuple[str, ...], told: str) -> None:
    code, _, err = run("quota", *given)
    assert code in (1, 2) and told in err and cluster.quotas.held == {}
