"""`barnabas acl ...` on a cluster in memory."""

import json
from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.log.vocabulary.access.acls import Acl, Operation, PatternKind, Permission, ResourceKind

ALICE = "User:CN=alice"
READ = Acl(kind=ResourceKind.TOPIC, name="orders", principal=ALICE, operation=Operation.READ)


def test_permissions_are_added_listed_and_removed(run: Any, cluster: FakeCluster) -> None:
    code, out, _ = run("acl", "add", ALICE, "read", "describe-configs", "--topic", "orders")
    assert code == 0 and [line.split() for line in out.splitlines()] == [
        ["PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST"],
        [ALICE, "allow", "read", "topic", "orders", "literal", "*"],
        [ALICE, "allow", "describe-configs", "topic", "orders", "literal", "*"],
    ]
    assert cluster.acls.held[0] == READ
    assert run("acl", "add", "User:*", "WRITE", "--topic", "ord", "--prefix", "--deny", "--host", "10.0.0.1")[0] == 0
    assert run("acl", "add", ALICE, "all", "--cluster")[0] == 0
    written = cluster.acls.held[2]
    assert (written.pattern, written.permission, written.host) == (PatternKind.PREFIXED, Permission.DENY, "10.0.0.1")
    code, out, _ = run("acl", "list", "--topic", "orders", "-f", "json")
    assert code == 0 and [row["operation"] for row in json.loads(out)] == ["describe-configs", "read", "write"]
    assert len(run("acl", "list", "--principal", ALICE)[1].splitlines()) == 4
    code, out, _ = run("acl", "remove", "--topic", "orders", "--operation", "read")
    assert code == 0 and len(out.splitlines()) == 2 and READ not in cluster.acls.held
    code, _, err = run("acl", "remove", "--topic", "orders", "--operation", "read")
    assert code == 0 and "nothing was removed" in err
    assert run("acl", "remove", "--all")[0] == 0 and cluster.acls.held == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("add", ALICE, "read"), "say with what: --topic"),
        (("add", ALICE, "raed", "--topic", "t"), "did you mean read?"),
        (("add", ALICE, "fly", "--group", "g"), "the operations are all, read, delete"),
        (("add", "alice", "read", "--topic", "t"), "write User:NAME"),
        (("add", ALICE, "cluster-action", "--topic", "t"), "does not exist for TOPIC"),
        (("add", ALICE, "read", "--topic", "t", "--group", "g"), "not allowed with"),
        (("remove",), "or, without any of them, --all"),
        (("remove", "--all", "--topic", "t"), "or, without any of them, --all"),
    ],
)
def test_mistakes_are_explained(run: Any, cluster: FakeCluster, given: tuple[str, ...], told: str) -> None:
    code, _, err = run("acl", *given)
    assert code in (1, 2) and told in err and cluster.acls.held == []
