"""`check_master`, `require_server`: errors of --master, before Spark is asked, which tries for minutes or says less.

A form that Spark cannot read is the user's to correct: PipelineFault. A Spark Connect server that does not answer may be
starting: ConnectionError, which the supervisor tries again.
"""

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ..session import CONNECT
from .faults import PipelineFault

KUBERNETES: Final = "k8s://"
IMAGES: Final = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
CONNECT_PORT: Final = 15_002  # Spark's default
# For a connection, and once more for the first answer on it; Spark's client tries for ten minutes.
SERVER_LIMIT_S: Final = 10.0
PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")  # that gRPC uses
_FORMS: Final = "local[N], spark://HOST:PORT, sc://HOST:PORT, yarn or k8s://URL"
# As Spark reads them: with spaces at commas, and with addresses of IPv6 in brackets.
_LOCAL: Final = re.compile(r"local(\[(\d+|\*)(\s*,\s*\d+)?\]|-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\])?")
_SERVER: Final = r"(?:[^\s:,/\[\]]+|\[[\da-fA-F:.]+\]):\d+"
_STANDALONE: Final = re.compile(f"spark://{_SERVER}(,{_SERVER})*")


def check_master(master: str, settings: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Raises PipelineFault for an address that Spark refuses, or tries for ever; `settings`: of the pipeline's [spark]."""
    if master.startswith(CONNECT):
        _place_of(master)
    elif master.startswith(KUBERNETES):
        _check_kubernetes(master, settings, environment)
    elif master != "yarn" and not _LOCAL.fullmatch(master) and not _STANDALONE.fullmatch(master):
        raise PipelineFault(f"--master is {master!r}, which Spark does not know: write {_FORMS}")


def require_server(address: str, environment: Mapping[str, str], *, limit_s: float = SERVER_LIMIT_S) -> None:
    """Raises ConnectionError if no Spark Connect server answers at sc://HOST:PORT within twice `limit_s`."""
    host, port = _place_of(address)
    if any(environment.get(name) for name in PROXIES):
        return  # the client connects to that
    try:
        socket.create_connection((host, port), timeout=limit_s).close()
    except TimeoutError:
        raise _no_server(host, port, f"no connection within {limit_s:.0f} s") from None
    except OSError as error:
        raise _no_server(host, port, str(error)) from None
    _require_protocol(address, host, port, limit_s)


def _require_protocol(address: str, host: str, port: int, limit_s: float) -> None:
    """Another server may listen there, or one with TLS: its port takes connections, too."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(address).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=limit_s)
    except grpc.FutureTimeoutError:
        why = (
            f"it takes connections, but does not speak gRPC within {limit_s:.0f} s; use_ssl=true and tokens are for TLS"
        )
        raise _no_server(host, port, why) from None
    finally:
        channel.close()


def _no_server(host: str, port: int, why: str) -> ConnectionError:
    return ConnectionError(f"no Spark Connect server answers at {host}:{port} ({why}): start it, or correct --master")


def _place_of(address: str) -> tuple[str, int]:
    """Raises PipelineFault, whose message leaves out the parameters: one of them may be a token."""
    server, has_parameters, _ = address.removeprefix(CONNECT).partition(";")
    shown = CONNECT + re.split("[/?#]", server)[0].rpartition("@")[2]
    if has_parameters and not server.endswith("/"):
        raise PipelineFault(f"--master is {shown};...: parameters follow a slash, as sc://HOST:PORT/;NAME=VALUE")
    try:
        place = urlsplit(f"{CONNECT}{server}")
        port = CONNECT_PORT if place.port is None else place.port
    except ValueError as error:
        raise PipelineFault(
            f"--master is {shown}, whose host or port is wrong ({error}): write sc://HOST:PORT with a port from 1 to 65535"
        ) from None
    if not place.hostname or port == 0:
        lacks = "no port that a server can have" if place.hostname else "no host"
        raise PipelineFault(
            f"--master is {shown}, which names {lacks}: write sc://HOST:PORT, such as sc://localhost:15002"
        )
    if place.path.strip("/") or place.query or place.fragment:
        raise PipelineFault(f"--master is {shown} with a path: parameters follow as sc://HOST:PORT/;NAME=VALUE")
    return place.hostname, port


def _check_kubernetes(master: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    server = master.removeprefix(KUBERNETES)
    try:
        url = urlsplit(server if "://" in server else f"https://{server}")
        is_address = bool(url.hostname) and url.scheme in ("http", "https") and url.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise PipelineFault(
            f"--master is {master!r}, which has no address of an API server: write k8s://https://HOST:PORT, as"
            " `kubectl cluster-info` shows it"
        )
    elsewhere = _settings_elsewhere(environment)
    if not any(settings.get(name) or name in elsewhere for name in IMAGES):
        raise PipelineFault(
            f'--master k8s://... needs an image for the executors: add "{IMAGES[0]}" = "REGISTRY/NAME:TAG" under [spark];'
            " docs/pipelines.md has a recipe"
        )


def _settings_elsewhere(environment: Mapping[str, str]) -> str:
    """The text of Spark's own settings, which its JVM reads beside those of the pipeline."""
    text = environment.get("PYSPARK_SUBMIT_ARGS", "")
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    with suppress(OSError):
        text += (Path(folder) / "spark-defaults.conf").read_text("utf-8", "replace") if folder else ""
    return text
