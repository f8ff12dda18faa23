"""The admin API through real HTTP, with a fake broker behind it."""

import base64
import io
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace
from unit.net.admin.fake_broker import FakeBroker

from barnabas.kraft.metadata.image import PartitionImage, TopicImage
from barnabas.log.format.record_batch import check_crc, read_header
from barnabas.log.vocabulary.cluster_changes import AddPartitionsRequest, AlterConfigRequest, ConfigEntryChange
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.group_messages import CommittedOffset, UndoneOffset, UndoOffsetResetResponse
from barnabas.net.admin.app import MAX_BODY_BYTES, ROUTES, build_app, start_admin
from barnabas.net.admin.routes.metrics import MAX_LAG_SERIES
from barnabas.net.wire.protocol import group_responses, requests, responses

CLUSTER = "/v3/clusters/c1"
JSON = {"Content-Type": "application/json"}
HttpClient = TestClient[Any, Any]


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[HttpClient]:
    async with TestClient(TestServer(build_app(broker))) as opened:
        yield opened


async def get(client: HttpClient, path: str, status: int = 200) -> Any:
    answer = await client.get(path)
    assert answer.status == status, await answer.text()
    return await answer.json()


async def test_clusters_and_brokers(client: HttpClient) -> None:
    listed = await get(client, "/v3/clusters")
    assert listed["kind"] == "KafkaClusterList" and "unconfirmed" not in listed
    assert listed["data"][0]["controller"]["related"].endswith("/v3/clusters/c1/brokers/0")
    brokers = (await get(client, f"{CLUSTER}/brokers"))["data"]
    assert [(item["broker_id"], item["port"], item["fenced"]) for item in brokers] == [
        (0, 9092, False),
        (1, 9093, False),
        (2, 9094, True),
    ]
    replicas = (await get(client, f"{CLUSTER}/brokers/1/partition-replicas"))["data"]
    assert [(item["partition_id"], item["is_leader"]) for item in replicas] == [(0, False), (1, True)]


async def test_topics_and_partitions(client: HttpClient) -> None:
    topic = await get(client, f"{CLUSTER}/topics/t")
    assert (topic["partitions_count"], topic["replication_factor"], topic["is_internal"]) == (3, 2, False)
    assert topic["metadata"]["resource_name"] == "crn:///kafka=c1/topics=t"
    partitions = (await get(client, f"{CLUSTER}/topics/t/partitions"))["data"]
    assert partitions[2]["leader"] is None
    replica = await get(client, f"{CLUSTER}/topics/t/partitions/1/replicas/2")
    assert (replica["is_leader"], replica["is_in_sync"]) == (False, False)
    moving = (await get(client, f"{CLUSTER}/topics/-/partitions/-/reassignment"))["data"]
    assert [(item["partition_id"], item["adding_replicas"]) for item in moving] == [(1, [2])]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v3/clusters/other", 404),
        (f"{CLUSTER}/topics/none", 40403),
        (f"{CLUSTER}/topics/t/partitions/9", 40403),
        (f"{CLUSTER}/topics/t/partitions/0/replicas/2", 404),
        (f"{CLUSTER}/topics/t/partitions/0/reassignment", 404),
        (f"{CLUSTER}/brokers/9", 404),
        (f"{CLUSTER}/consumer-groups/none", 404),
        (f"{CLUSTER}/topics/t/configs/none", 404),
        ("/nothing", 404),
    ],
)
async def test_what_does_not_exist_is_said_so(client: HttpClient, path: str, code: int) -> None:
    body = await get(client, path, 404)
    assert set(body) == {"error_code", "message"}
    assert body["error_code"] == code


@pytest.mark.parametrize("index", ["x", "-1", "1.5", "٣"])
async def test_a_partition_that_is_no_number_is_a_bad_request(client: HttpClient, index: str) -> None:
    assert (await get(client, f"{CLUSTER}/topics/t/partitions/{index}", 400))["error_code"] == 400


async def test_data_folders_of_a_broker(client: HttpClient, broker: FakeBroker) -> None:
    folder = responses.StorageFolder(
        path="/d",
        directory_id="i",
        state="offline",
        cause="EIO",
        since_ms=5,
        partitions=0,
        offline_partitions=("t-0",),
        size_bytes=-1,
        free_bytes=-1,
        total_bytes=-1,
        strays=("/d/t-7.id.1-stray",),
    )
    found = responses.DescribeStorageResponse(node_id=1, folders=(folder,))
    broker.answers[requests.DescribeStorageRequest] = broker.answers[requests.BringBackFolderRequest] = lambda _: found
    (shown,) = (await get(client, f"{CLUSTER}/brokers/1/barnabas/folders"))["data"]
    assert (shown["state"], shown["cause"], shown["free_bytes"]) == ("offline", "EIO", None)
    assert (shown["offline_partitions"], shown["strays"]) == (["t-0"], ["/d/t-7.id.1-stray"])
    answer = await client.post(f"{CLUSTER}/brokers/1/barnabas/folders:bring-back", json={"path": "/d"})
    assert answer.status == 200 and (await answer.json())["path"] == "/d"
    assert broker.asked[-1] == requests.BringBackFolderRequest(node_id=1, path="/d")
    assert (await client.get(f"{CLUSTER}/brokers/7/barnabas/folders")).status == 404
    assert (await client.post(f"{CLUSTER}/brokers/1/barnabas/folders:bring-back", json={})).status == 400


async def test_create_topic(client: HttpClient, broker: FakeBroker) -> None:
    body = {"topic_name": "new", "partitions_count": 4, "configs": [{"name": "retention.ms", "value": 5}]}
    answer = await client.post(f"{CLUSTER}/topics", json=body)
    assert answer.status == 201
    assert (await answer.json())["replication_factor"] == 2
    (request,) = broker.asked
    assert isinstance(request, requests.CreateTopicRequest) and request.topic_id  # so that it can be repeated
    assert replace(request, topic_id="") == requests.CreateTopicRequest(
        name="new", partition_count=4, configs={"retention.ms": "5"}, validate_only=False
    )


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "null",
        '{"topic_name": 5}',
        '{"topic_name": "a", "partitions_count": "3"}',
        '{"topic_name": "a", "partitions_count": true}',
        '{"topic_name": "a", "partitions_count": NaN}',
        '{"topic_name": "a", "configs": ["x"]}',
        '{"topic_name": "a", "configs": [{"value": "x"}]}',
        '{"topic_name": "a", "replicas_assignments": [{"partition_id": 1, "broker_ids": [0]}]}',
        '{"topic_name": "a", "replicas_assignments": [{"partition_id": 0, "broker_ids": "0"}]}',
        "[" * 100_000,
    ],
)
async def test_a_malformed_body_is_a_bad_request(client: HttpClient, broker: FakeBroker, body: str) -> None:
    answer = await client.post(f"{CLUSTER}/topics", data=body, headers=JSON)
    assert answer.status == 400
    assert (await answer.json())["error_code"] == 400
    assert broker.asked == []


async def test_bytes_that_are_no_text_are_a_bad_request(client: HttpClient) -> None:
    answer = await client.post(f"{CLUSTER}/topics", data=b"\xff\xfe{", headers=JSON)
    assert answer.status == 400


async def test_a_body_that_is_too_large_is_refused(client: HttpClient) -> None:
    answer = await client.post(f"{CLUSTER}/topics", data=io.BytesIO(b" " * (MAX_BODY_BYTES + 1)), headers=JSON)
    assert answer.status == 413
    assert (await answer.json())["error_code"] == 413


@pytest.mark.parametrize(
    ("code", "status", "number"),
    [
        (ErrorCode.TOPIC_ALREADY_EXISTS, 400, 40002),
        (ErrorCode.NOT_CONTROLLER, 503, 50003),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 500, 50002),
    ],
)
async def test_errors_of_the_cluster(
    client: HttpClient, broker: FakeBroker, code: ErrorCode, status: int, number: int
) -> None:
    broker.answers[requests.CreateTopicRequest] = lambda _: responses.ErrorResponse(error=code, message="why")
    answer = await client.post(f"{CLUSTER}/topics", json={"topic_name": "t"})
    assert answer.status == status
    assert await answer.json() == {"error_code": number, "message": "why"}


async def test_a_bug_is_an_internal_error_without_its_trace(
    client: HttpClient, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> responses.Response:
        raise ZeroDivisionError("secret")

    broker.answers[requests.CreateTopicRequest] = fail
    answer = await client.post(f"{CLUSTER}/topics", json={"topic_name": "t"})
    assert answer.status == 500
    assert "secret" not in await answer.text()
    assert "ZeroDivisionError" in caplog.text


async def test_delete_and_grow_a_topic(client: HttpClient, broker: FakeBroker) -> None:
    assert (await client.delete(f"{CLUSTER}/topics/t")).status == 204
    grown = await client.patch(f"{CLUSTER}/topics/t", json={"partitions_count": 5})
    assert (await grown.json())["partitions_count"] == 5
    assert broker.asked == [
        requests.DeleteTopicRequest(name="t"),
        AddPartitionsRequest(name="t", total_count=5),
    ]


async def test_configs(client: HttpClient, broker: FakeBroker) -> None:
    listed = (await get(client, f"{CLUSTER}/topics/t/configs"))["data"]
    assert [(item["name"], item["source"], item["is_default"]) for item in listed] == [
        ("retention.ms", "DYNAMIC_TOPIC_CONFIG", False),
        ("segment.bytes", "DEFAULT_CONFIG", True),
    ]
    assert (await get(client, f"{CLUSTER}/topics/t/configs/segment.bytes"))["value"] == "9"
    broker.asked.clear()
    changes = [{"name": "a", "value": "1"}, {"name": "b", "operation": "DELETE"}]
    assert (await client.post(f"{CLUSTER}/topics/t/configs:alter", json={"data": changes})).status == 204
    assert (await client.put(f"{CLUSTER}/brokers/1/configs/a", json={"value": "2"})).status == 204
    assert (await client.delete(f"{CLUSTER}/broker-configs/a")).status == 204
    change = ConfigEntryChange
    assert broker.asked == [
        AlterConfigRequest(
            resource_type=2, resource="t", changes=(change(key="a", value="1"), change(key="b", value=None))
        ),
        AlterConfigRequest(resource_type=4, resource="1", changes=(change(key="a", value="2"),)),
        AlterConfigRequest(resource_type=4, resource="", changes=(change(key="a", value=None),)),
    ]


async def test_groups_and_lags(client: HttpClient) -> None:
    assert (await get(client, f"{CLUSTER}/consumer-groups"))["data"][0]["state"] == "STABLE"
    assert (await get(client, f"{CLUSTER}/consumer-groups/g"))["partition_assignor"] == "range"
    assert (await get(client, f"{CLUSTER}/consumer-groups/g/consumers/m1"))["client_id"] == "app"
    assert (await get(client, f"{CLUSTER}/consumer-groups/g/consumers/m2", 404))["error_code"] == 404
    assigned = (await get(client, f"{CLUSTER}/consumer-groups/g/consumers/m1/assignments"))["data"]
    assert [(item["topic_name"], item["partition_id"]) for item in assigned] == [("t", 0)]
    lags = (await get(client, f"{CLUSTER}/consumer-groups/g/lags"))["data"]
    assert [(item["partition_id"], item["lag"], item["consumer_id"]) for item in lags] == [(0, 60, "m1"), (1, 5, "")]
    assert [(item["lag_seconds"], item["has_committed"]) for item in lags] == [(63.0, True), (8.0, True)]
    assert (await get(client, f"{CLUSTER}/consumer-groups/g/lags/t/partitions/1"))["lag"] == 5
    await get(client, f"{CLUSTER}/consumer-groups/g/lags/t/partitions/2", 404)
    summary = await get(client, f"{CLUSTER}/consumer-groups/g/lag-summary")
    assert (summary["max_lag"], summary["total_lag"], summary["max_lag_consumer_id"]) == (60, 65, "m1")
    assert summary["max_lag_seconds"] == 63.0


async def test_a_group_that_has_never_committed_lags_from_the_start_of_the_log(
    client: HttpClient, broker: FakeBroker
) -> None:
    broker.answers[requests.OffsetFetchRequest] = lambda _: group_responses.OffsetFetchResponse(partitions=())
    (lag,) = (await get(client, f"{CLUSTER}/consumer-groups/g/lags"))["data"]
    assert (lag["partition_id"], lag["current_offset"], lag["has_committed"]) == (0, -1, False)
    assert (lag["lag"], lag["lag_seconds"]) == (90, 93.0)


async def test_scrapes_share_what_was_found_within_a_second(client: HttpClient, broker: FakeBroker) -> None:
    await client.get("/metrics")
    await client.get("/metrics")
    asked = [request.partitions[0].partition for request in broker.asked if isinstance(request, requests.UnreadRequest)]
    assert sorted(asked) == [0, 1]  # one request to each leader


async def test_only_so_many_partitions_of_groups_are_told_one_by_one_those_that_lag_most(
    client: HttpClient, broker: FakeBroker
) -> None:
    count = MAX_LAG_SERIES + 5
    one = PartitionImage(replicas=(0,), isr=(0,), leader=0)
    broker.topics["many"] = TopicImage(name="many", topic_id="b" * 32, partitions=(one,) * count)
    broker.answers[requests.OffsetFetchRequest] = lambda _: group_responses.OffsetFetchResponse(
        partitions=tuple(
            CommittedOffset(topic="many", partition=number, offset=min(number, 100)) for number in range(count)
        )
    )
    lines = (await (await client.get("/metrics")).text()).splitlines()
    assert sum(line.startswith("kafka_consumergroup_lag{") for line in lines) == MAX_LAG_SERIES
    assert "barnabas_group_lag_series_omitted 6" in lines  # five, and the partition that the member owns
    assert 'kafka_consumergroup_lag{consumergroup="g",topic="many",partition="0"} 90' in lines
    assert 'barnabas_group_max_lag_seconds{group="g"} 93' in lines


async def test_health_has_the_causes_of_the_command(client: HttpClient, broker: FakeBroker) -> None:
    active = responses.ClusterBroker(
        node_id=0, host="h", port=9092, rack=None, fenced=False, in_controlled_shutdown=False, broker_epoch=1
    )
    brokers = (active, replace(active, node_id=1, fenced=True))
    broker.answers[requests.DescribeClusterRequest] = lambda request: responses.DescribeClusterResponse(
        cluster_id="c1", controller_id=0, offset=1, brokers=brokers
    )
    found = await get(client, f"{CLUSTER}/health")
    assert found["healthy"] is False
    assert found["causes"] == ["broker 1 is fenced: it is down, cut off, or not yet caught up"]
    assert found["unclean_elections"] == [] and found["ignored_settings"] == []


async def test_a_group_explains_itself(client: HttpClient, broker: FakeBroker) -> None:
    told = await get(client, f"{CLUSTER}/consumer-groups/g/explain")
    assert told["rebalances"][0]["causes"][0]["cause"] == "member_expired"
    assert told["rebalances"][0]["moves"] == [
        {"topic": "t", "partition": 0, "from": "m0", "to": "m1", "at_ms": 70, "pause_ms": 45_000}
    ]
    assert told["unowned"][0]["reason"] == "member_away"
    listed = (await get(client, f"{CLUSTER}/consumer-groups/g/rebalances"))["data"]
    assert (listed[0]["id"], listed[0]["stable_after_ms"], listed[0]["under_way"]) == (4, 12, False)
    assert broker.asked[-1] == requests.DescribeGroupRequest(group_id="g", explain=True)
    await get(client, f"{CLUSTER}/consumer-groups/none/explain", 404)


async def test_a_group_is_moved_and_back(client: HttpClient, broker: FakeBroker) -> None:
    broker.answers[requests.UndoOffsetResetRequest] = lambda request: UndoOffsetResetResponse(
        reset_id=1,
        at_ms=0,
        by="me",
        offsets=(UndoneOffset(topic="t", partition=0, before=20, after=40),),
    )
    path = f"{CLUSTER}/consumer-groups/g/seek"
    told = await (await client.post(path, json={"to": "-20", "preview": True})).json()
    shown = [(item["before"], item["after"], item["read_again"], item["lag_after"]) for item in told["data"]]
    assert shown == [(40, 20, 20, 80), (95, 75, 20, 25)]
    assert not [request for request in broker.asked if isinstance(request, requests.ResetOffsetsRequest)]
    assert (await client.post(path, json={"to": "-20"})).status == 200
    (request,) = (request for request in broker.asked if isinstance(request, requests.ResetOffsetsRequest))
    assert [(item.partition, item.offset) for item in request.partitions] == [(0, 20), (1, 75)]
    undone = await (await client.post(f"{path}/undo", json={})).json()
    assert [(item["before"], item["after"], item["skipped"]) for item in undone["data"]] == [(20, 40, 20)]
    assert (await client.post(path, json={"to": "yesterday"})).status == 400
    assert (await client.post(path, json={"to": "end", "topics": ["none"]})).status == 404


async def test_produce_a_record(client: HttpClient, broker: FakeBroker) -> None:
    body = {
        "partition_id": 1,
        "key": {"type": "STRING", "data": "k"},
        "value": {"type": "BINARY", "data": base64.b64encode(b"\x00v").decode()},
        "headers": [{"name": "h", "value": base64.b64encode(b"x").decode()}],
        "timestamp": "2026-01-02T03:04:05Z",
    }
    answer = await client.post(f"{CLUSTER}/topics/t/records", json=body)
    assert answer.status == 200
    told = await answer.json()
    assert (told["partition_id"], told["offset"], told["timestamp"]) == (1, 7, "2026-01-02T03:04:05.000Z")
    (request,) = broker.asked
    assert isinstance(request, requests.ProduceRequest)
    assert request.acks == -1
    records = request.partitions[0].records
    header = read_header(records)
    check_crc(records, header)
    assert header.record_count == 1
    assert b"\x00v" in bytes(records)


@pytest.mark.parametrize(
    "body",
    [
        {"value": "plain"},
        {"value": {"type": "AVRO", "data": "x"}},
        {"value": {"type": ["STRING"], "data": "x"}},
        {"value": {"type": "STRING", "data": 5}},
        {"value": {"type": "BINARY", "data": "***"}},
        {"headers": [{"name": 5}]},
        {"headers": [{"name": "a", "value": 5}]},
        {"timestamp": "yesterday"},
        {"partition_id": "1"},
        {"value": {"type": "STRING", "data": "\ud800"}},
        {"headers": [{"name": "\udfff"}]},
    ],
)
async def test_a_malformed_record_is_a_bad_request(client: HttpClient, broker: FakeBroker, body: Any) -> None:
    answer = await client.post(f"{CLUSTER}/topics/t/records", json=body)
    assert answer.status == 400
    assert broker.asked == []


async def test_a_batch_has_an_outcome_for_each_record(client: HttpClient, broker: FakeBroker) -> None:
    def value(text: str, **more: Any) -> dict[str, Any]:
        return {"id": text, "value": {"type": "STRING", "data": text}, **more}

    entries = [
        value("a", partition_id=1),
        value("b", partition_id=0),
        value("wrong", partition_id=9),
        value("c", partition_id=1),
        {"id": "bad", "value": {"type": "BINARY", "data": "***"}},
    ]
    answer = await client.post(f"{CLUSTER}/topics/t/records:batch", json={"entries": entries})
    assert answer.status == 207
    told = await answer.json()
    assert [(item["id"], item["partition_id"], item["offset"]) for item in told["successes"]] == [
        ("a", 1, 7), ("b", 0, 7), ("c", 1, 8)
    ]  # fmt: skip
    assert [(item["id"], item["error_code"]) for item in told["failures"]] == [("wrong", 40403), ("bad", 400)]
    sent = [request for request in broker.asked if isinstance(request, requests.ProduceRequest)]
    counts = [read_header(request.partitions[0].records).record_count for request in sent]
    assert counts == [2, 1]


@pytest.mark.parametrize(
    "body, words",
    [
        ({}, "entries"),
        ({"entries": []}, "1 to 1000"),
        ({"entries": [{"id": str(number)} for number in range(1_001)]}, "1 to 1000"),
        ({"entries": [{"id": "a"}, {"id": "a"}]}, "the same id"),
        ({"entries": [{"value": None}]}, "id"),
        ({"entries": [{"id": "a", "vlue": None}]}, "value"),
    ],
)
async def test_a_batch_that_is_none_is_refused_whole(
    client: HttpClient, broker: FakeBroker, body: Any, words: str
) -> None:
    answer = await client.post(f"{CLUSTER}/topics/t/records:batch", json=body)
    assert answer.status == 400 and words in (await answer.json())["message"]
    assert broker.asked == []


async def test_produce_to_a_partition_that_does_not_exist(client: HttpClient) -> None:
    answer = await client.post(f"{CLUSTER}/topics/t/records", json={"partition_id": 9})
    assert answer.status == 404


async def test_health(client: HttpClient, broker: FakeBroker) -> None:
    assert (await get(client, "/healthz"))["status"] == "ok"
    assert (await get(client, "/readyz"))["ready"] is True
    broker.ready = (False, "not yet unfenced")
    assert (await get(client, "/readyz", 503))["reason"] == "not yet unfenced"


async def test_a_load_balancer_asks_with_head(client: HttpClient, broker: FakeBroker) -> None:
    answer = await client.head("/healthz")
    assert (answer.status, await answer.read()) == (200, b"")
    broker.ready = (False, "not yet unfenced")
    assert (await client.head("/readyz")).status == 503


async def test_a_character_of_two_halves_is_welcome(client: HttpClient) -> None:
    body = {"value": {"type": "STRING", "data": "\U0001f600"}}  # JSON writes it as \\ud83d\\ude00.
    assert (await client.post(f"{CLUSTER}/topics/t/records", json=body)).status == 200


async def test_metrics(client: HttpClient) -> None:
    text = await (await client.get("/metrics")).text()
    lines = text.splitlines()
    assert "kafka_brokers 2" in lines
    assert 'kafka_topic_partitions{topic="t"} 3' in lines
    assert 'kafka_topic_partition_current_offset{topic="t",partition="0"} 100' in lines
    assert 'kafka_topic_partition_oldest_offset{topic="t",partition="0"} 10' in lines
    assert 'kafka_topic_partition_under_replicated_partition{topic="t",partition="0"} 0' in lines
    assert not any('partition="1"' in line and "kafka_topic" in line for line in lines), "another broker leads it"
    assert 'kafka_consumergroup_lag{consumergroup="g",topic="t",partition="0"} 60' in lines
    assert 'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 65' in lines
    assert 'kafka_consumergroup_lag_seconds{consumergroup="g",topic="t",partition="0"} 63' in lines
    assert 'barnabas_group_max_lag_seconds{group="g"} 63' in lines
    assert 'barnabas_group_max_lag_records{group="g"} 60' in lines
    assert 'barnabas_requests_total{api="a\\"b\\n"} 3' in lines
    helps = [line for line in lines if line.startswith("# TYPE")]
    assert len(helps) == len(set(helps))


async def test_the_openapi_document_names_exactly_what_is_served(client: HttpClient, broker: FakeBroker) -> None:
    served = {
        (route.method, route.resource.canonical)
        for route in build_app(broker).router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    document = await get(client, "/openapi.json")
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == served
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids)) == len(ROUTES)


async def test_a_wrong_method_says_which_are_allowed(client: HttpClient) -> None:
    answer = await client.put(f"{CLUSTER}/topics")
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET,HEAD,POST"
    assert (await answer.json())["error_code"] == 405


async def test_serving_on_a_socket_that_listens_already(broker: FakeBroker) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = await start_admin(broker, listening)
    try:
        assert server.address == listening.getsockname()[:2]
        async with aiohttp.ClientSession() as session:
            answer = await session.get("http://{}:{}/healthz".format(*server.address))
            assert answer.status == 200
    finally:
        await server.close()
