"""What is wrong with --master is told by this process, within a time that has a name."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from barnabas.spark_connector.pipeline.faults import PipelineFault, is_final, told_of
from barnabas.spark_connector.pipeline.masters import IMAGES, check_master, require_server

grpc = pytest.importorskip("grpc")
pytest.importorskip("pyspark.sql.connect.client")  # here, as it takes seconds on a busy machine
IMAGE = {IMAGES[0]: "registry.example.com/spark:4"}


@pytest.mark.parametrize(
    ("master", "settings"),
    [
        *[
            (master, {})
            for master in (
                "local",
                "local[2]",
                "local[*]",
                "local[2,3]",
                "local[*, 3]",
                "local-cluster[2, 1, 1024]",
                "yarn",
            )
        ],
        *[
            (master, {})
            for master in (
                "spark://a:7077",
                "spark://a:7077,b:7077",
                "spark://[::1]:7077,b:1",
                "sc://a",
                "sc://a/",
                "sc://a:1/;token=x",
                "sc://[::1]:1",
            )
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
            "sc://a:99999, whose host or port is wrong (Port out of range 0-65535): write sc://HOST:PORT",
        ),
        ("sc://a:port", "whose host or port is wrong"),
        ("sc://[::1", "whose host or port is wrong"),
        ("sc://a:1;token=secret", "sc://a:1;...: parameters follow a slash, as sc://HOST:PORT/;NAME=VALUE"),
        ("sc://a:1?token=secret", "sc://a:1 with a path: parameters follow as sc://HOST:PORT/;NAME=VALUE"),
        ("sc://u:secret@a:99999", "--master is sc://a:99999, whose host or port is wrong"),
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
        ("k8s://https://[a", "which has no address of an API server"),
        ("spark://[::1:7077", "which Spark does not know"),
        ("k8s://https://a:port", "which has no address of an API server"),
        ("k8s://https://a:6443", 'add "spark.kubernetes.container.image" = "REGISTRY/NAME:TAG" under [spark]'),
    ],
)
def test_a_wrong_master_ends_the_pipeline_with_the_cure(master: str, told: str) -> None:
    with pytest.raises(PipelineFault) as caught:
        check_master(master, {}, {})
    assert told in told_of(caught.value) and "secret" not in str(caught.value)
    assert is_final(caught.value)


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS"])
def test_an_image_in_settings_of_spark_itself_counts(variable: str, tmp_path: Path) -> None:
    """Spark's JVM reads them, too: such a pipeline ran, and must not be refused."""
    (tmp_path / "conf").mkdir()
    line = f"{IMAGES[0]} registry.example.com/spark:4\n"
    for folder in (tmp_path, tmp_path / "conf"):
        (folder / "spark-defaults.conf").write_text(line)
    value = f"--conf {IMAGES[0]}=own pyspark-shell" if variable == "PYSPARK_SUBMIT_ARGS" else str(tmp_path)
    check_master("k8s://https://a:6443", {}, {variable: value})
    (tmp_path / "spark-defaults.conf").unlink()
    check_master("k8s://https://a:6443", {}, {"SPARK_HOME": str(tmp_path)})
    for environment in ({}, {"SPARK_CONF_DIR": str(tmp_path)}, {"SPARK_HOME": str(tmp_path / "conf")}):
        with pytest.raises(PipelineFault, match="needs an image"):
            check_master("k8s://https://a:6443", {}, environment)


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
    # it is the proxy that must be reached
    require_server(f"sc://127.0.0.1:{port}", {"https_proxy": "http://proxy:3128"})


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
        told = f"127.0.0.1:{port} .it takes connections, but does not speak gRPC within 1 s"
        began_s = time.monotonic()
        try:
            with pytest.raises(ConnectionError, match=told):
                require_server(f"sc://127.0.0.1:{port}", {}, limit_s=1)
            assert time.monotonic() - began_s < 10
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # otherwise the thread waits for ever, and so does this test


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
