"""What is wrong with --master is told by this process, within a time that has a name."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from barnabas.spark_connector.pipeline.faults import PipelineFault, is_final, told_of
from barnabas.spark_connector.pipeline.masters import IMAGES, check_master, require_server

grpc = pytest.importorskip("grpc")
IMAGE = {IMAGES[0]: "registry.example.com/spark:4"}


@pytest.mark.parametrize(
    ("master", "settings"),
    [
        *[
            (master, {})
            for master in ("local", "local[2]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "yarn")
        ],
        *[
            (master, {})
            for master in ("spark://a:7077", "spark://a:7077,b:7077", "sc://a", "sc://a:1/;token=x", "sc://[::1]:1")
        ],
        *[(master, IMAGE) for master in ("k8s://https://a:6443", "k8s://a:6443", "k8s://http://127.0.0.1:8001")],
        ("k8s://https://a:6443", {IMAGES[1]: "own"}),
    ],
)
def test_what_spark_takes_is_let_through(master: str, settings: dict[str, str]) -> None:
    check_master(master, settings)


@pytest.mark.parametrize(
    ("master", "told"),
    [
        (
            "sc://a:99999/;token=secret",
            "sc://a:99999, whose port is wrong (Port out of range 0-65535): write sc://HOST:PORT",
        ),
        ("sc://a:port", "whose port is wrong"),
        ("sc://a:0", "names no port that a server can have"),
        ("sc://", "names no host: write sc://HOST:PORT, such as sc://localhost:15002"),
        ("sc://:15002", "names no host"),
        ("sc://a:1/path", "sc://a:1 with a path: parameters follow as sc://HOST:PORT/;NAME=VALUE"),
        (
            "spark://a",
            "'spark://a', which Spark does not know: write local[N], spark://HOST:PORT, sc://HOST:PORT, yarn or k8s",
        ),
        ("mesos://a:5050", "which Spark does not know"),
        ("yarn-client", "which Spark does not know"),
        ("k8s://", "which has no address of an API server: write k8s://https://HOST:PORT"),
        ("k8s://https://a:port", "which has no address of an API server"),
        ("k8s://https://a:6443", 'add "spark.kubernetes.container.image" = "REGISTRY/NAME:TAG" under [spark]'),
    ],
)
def test_a_wrong_master_ends_the_pipeline_with_the_cure(master: str, told: str) -> None:
    with pytest.raises(PipelineFault) as caught:
        check_master(master, {})
    assert told in told_of(caught.value) and "secret" not in str(caught.value)
    assert is_final(caught.value)


def test_a_spark_connect_server_is_one_that_speaks_grpc() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        require_server(f"sc://127.0.0.1:{port}", {})
    finally:
        server.stop(0).wait()
    with pytest.raises(ConnectionError) as caught:
        require_server(f"sc://127.0.0.1:{port}/;token=secret", {})
    told = told_of(caught.value)
    assert f"no Spark Connect server answers at 127.0.0.1:{port} (" in told and "secret" not in told
    assert not is_final(caught.value), "it may be starting"
    require_server(
        f"sc://127.0.0.1:{port}", {"https_proxy": "http://proxy:3128"}
    )  # it is the proxy that must be reached


def test_a_host_that_is_not_known_or_not_there_is_told_with_the_reason() -> None:
    with pytest.raises(ConnectionError, match=r"answers at no\.such\.host\.invalid:15002 \(.*\): start it"):
        require_server("sc://no.such.host.invalid", {})


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_another_server_at_the_port_is_told_within_the_limit(answer: bytes) -> None:
    """Its port takes connections. Spark's client tried for ten minutes without a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with closing(connection):
                    connection.sendall(answer)
                    if not answer:
                        connection.recv(1 << 16)
                        connection.recv(1)

        pool.submit(serve)
        port = listener.getsockname()[1]
        began_s = time.monotonic()
        with pytest.raises(
            ConnectionError, match=f"127.0.0.1:{port} .it takes connections, but does not speak gRPC within 1 s"
        ):
            require_server(f"sc://127.0.0.1:{port}", {}, limit_s=1)
        assert time.monotonic() - began_s < 5
        listener.shutdown(socket.SHUT_RDWR)


def test_a_host_that_swallows_packets_is_told_within_the_limit() -> None:
    """As a firewall does: a listener whose queue is full does not answer another connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(3):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
            waiting.append(one)
        try:
            with pytest.raises(ConnectionError, match=r"\(no connection within 1 s\): start it, or correct --master"):
                require_server(f"sc://127.0.0.1:{listener.getsockname()[1]}", {}, limit_s=1)
        finally:
            for one in waiting:
                one.close()
