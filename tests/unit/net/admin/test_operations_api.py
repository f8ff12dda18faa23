"""What operators do over HTTP: each path becomes the request that the command line sends."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from unit.net.admin.fake_broker import FakeBroker

from barnabas.log.vocabulary.cluster_changes import (
    AlterUsersRequest,
    AssignReplicasRequest,
    DecommissionBrokerRequest,
    ElectLeaderRequest,
    FillBrokerRequest,
    FillBrokerResponse,
    UnregisterBrokerRequest,
)
from barnabas.net.admin.app import build_app
from barnabas.net.wire.protocol import requests, responses
from barnabas.net.wire.protocol.user_messages import DescribeUsersRequest, DescribeUsersResponse, UserDescription

CLUSTER = "/v3/clusters/c1"
BROKER = f"{CLUSTER}/brokers/1"
PARTITION = f"{CLUSTER}/topics/t/partitions/0"
HttpClient = TestClient[Any, Any]
DONE = responses.EmptyResponse()


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    for kind in (AssignReplicasRequest, DecommissionBrokerRequest, ElectLeaderRequest, UnregisterBrokerRequest,
                 AlterUsersRequest, requests.BrokerShutdownRequest):  # fmt: skip
        made.answers[kind] = lambda _: DONE
    return made


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[HttpClient]:
    async with TestClient(TestServer(build_app(broker))) as opened:
        yield opened


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "wanted"),
    [
        ("POST", f"{BROKER}/barnabas/drain", None, 202, requests.BrokerShutdownRequest(node_id=1)),
        (
            "POST", f"{BROKER}/barnabas/decommission?throttle_bytes_per_s=5000", None, 202,
            DecommissionBrokerRequest(node_id=1, cancel=False, throttle_bytes_per_s=5_000),
        ),
        ("DELETE", f"{BROKER}/barnabas/decommission", None, 204, DecommissionBrokerRequest(node_id=1, cancel=True)),
        ("DELETE", BROKER, None, 204, UnregisterBrokerRequest(node_id=1)),
        (
            "POST", f"{PARTITION}/reassignment", {"replicas": [2, 1], "throttle_bytes_per_s": 9}, 202,
            AssignReplicasRequest(topic="t", partition=0, replicas=(2, 1), throttle_bytes_per_s=9),
        ),
        (
            "DELETE", f"{PARTITION}/reassignment", None, 204,
            AssignReplicasRequest(topic="t", partition=0, replicas=(), throttle_bytes_per_s=0),
        ),
        ("POST", f"{PARTITION}/leader", {}, 200, ElectLeaderRequest(topic="t", partition=0)),
        ("POST", f"{PARTITION}/leader", {"broker_id": 1}, 200, ElectLeaderRequest(topic="t", partition=0, target=1)),
        ("POST", f"{PARTITION}/leader", {"accept_loss": True}, 200, ElectLeaderRequest(topic="t", partition=0, unclean=True)),
    ],
)  # fmt: skip
async def test_each_path_asks_for_what_it_says(
    client: HttpClient, broker: FakeBroker, method: str, path: str, body: Any, status: int, wanted: Any
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.status == status, await answer.text()
    assert wanted in broker.asked


async def test_a_share_of_replicas_is_moved_to_a_broker(client: HttpClient, broker: FakeBroker) -> None:
    pieces = iter((4, 3, 0))  # of a large cluster: one decision has a limited number
    broker.answers[FillBrokerRequest] = lambda _: FillBrokerResponse(move_count=next(pieces))
    answer = await client.post(f"{BROKER}/barnabas/fill")
    assert (answer.status, await answer.json()) == (202, {"broker_id": 1, "moves_count": 7})
    assert next(pieces, None) is None


async def test_moves_with_what_is_left(client: HttpClient, broker: FakeBroker) -> None:
    left = responses.CatchingUp(node_id=2, records_left=10, bytes_left=-1)
    move = responses.PartitionMove(
        topic="t", partition=0, leader=0, replicas=(0, 1), adding=(2,), removing=(1,), catching_up=(left,)
    )
    found = responses.DescribeMovesResponse(moves=(move,), throttle_bytes_per_s=1_000)
    broker.answers[requests.DescribeMovesRequest] = lambda _: found
    answer = await (await client.get(f"{CLUSTER}/barnabas/moves")).json()
    assert answer["throttle_bytes_per_s"] == 1_000
    (row,) = answer["data"]
    assert row["catching_up"] == [{"broker_id": 2, "records_left": 10, "bytes_left": None}]
    assert (row["adding_replicas"], row["removing_replicas"], row["leader"]) == ([2], [1], 0)


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("POST", f"{PARTITION}/reassignment", {"replicas": []}, "a list of broker ids"),
        ("POST", f"{PARTITION}/reassignment", {"replicas": [1, "2"]}, "a list of broker ids"),
        ("POST", f"{PARTITION}/reassignment", {"replicas": [True]}, "a list of broker ids"),
        ("POST", f"{PARTITION}/reassignment", {"replica": [1]}, "did you mean replicas?"),
        ("POST", f"{PARTITION}/leader", {"broker_id": 1, "accept_loss": True}, "leave out broker_id"),
        ("DELETE", f"{PARTITION}/records", None, "before_offset is missing"),
        ("PUT", f"{CLUSTER}/users/ann", {"password": "x"}, "by TLS only"),
        ("PUT", f"{CLUSTER}/users/ann", {"password": 5}, "must be of type string"),
    ],
)
async def test_what_is_refused(client: HttpClient, method: str, path: str, body: Any, told: str) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.status == 400 and told in (await answer.json())["message"]


async def test_what_is_not_there_is_not_found(client: HttpClient) -> None:
    for method, path in (
        ("POST", f"{CLUSTER}/brokers/9/barnabas/drain"),
        ("DELETE", f"{CLUSTER}/topics/none/partitions/0/reassignment"),
        ("DELETE", f"{CLUSTER}/consumer-groups/g/consumers/nobody"),
        ("DELETE", f"{CLUSTER}/consumer-groups/g/offsets/none"),
    ):
        assert (await client.request(method, path)).status == 404, path


async def test_users_are_listed_with_their_mechanisms(client: HttpClient, broker: FakeBroker) -> None:
    users = tuple(
        UserDescription(user=user, mechanism=kind, iterations=4096) for user, kind in (("b", 2), ("a", 1), ("b", 1))
    )
    broker.answers[DescribeUsersRequest] = lambda _: DescribeUsersResponse(users=users)
    rows = (await (await client.get(f"{CLUSTER}/users")).json())["data"]
    assert [(row["user"], row["mechanisms"]) for row in rows] == [
        ("a", ["SCRAM-SHA-256"]),
        ("b", ["SCRAM-SHA-256", "SCRAM-SHA-512"]),
    ]
