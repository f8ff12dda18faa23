"""Spark reads from and writes to a cluster with TLS and logins: by our source and sink with a password and with a token, and by
Spark's own for Kafka, unchanged. No secret is in a plan."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from integration import java_client
from integration.cluster import SESSION, Cluster, clean_environment
from integration.spark_kafka_driver import RECORDS
from integration.spark_world import FORMAT, STREAM_DEADLINE_S
from joserfc import jwt
from joserfc.jwk import RSAKey
from pyspark.sql import DataFrame, SparkSession

from barnabas.net.base.local.secure_layout import CLIENT_PROPERTIES
from barnabas.net.base.settings.properties import parse_properties

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
DRIVER_S = 240.0
TOKEN_S = 600
MODULES = "org.apache.kafka.common.security.oauthbearer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secure:
    cluster: Cluster
    token: Callable[[str], str]  # of a user

    @property
    def by_password(self) -> dict[str, str]:
        """The options of Kafka in the file that `up --secure` has written."""
        file = parse_properties((self.cluster.folder / CLIENT_PROPERTIES).read_text(encoding="utf-8"))
        return {"kafka." + key: text for key, text in file.items()}

    def by_token(self, path: Path) -> dict[str, str]:
        of_tokens = {
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.jaas.config": f"{MODULES}.OAuthBearerLoginModule required;",
            "kafka.sasl.oauthbearer.token.endpoint.url": path.as_uri(),
            "kafka.sasl.login.callback.handler.class": f"{MODULES}.OAuthBearerLoginCallbackHandler",
        }
        return {**self.by_password, **of_tokens}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("spark-secure")
    key = RSAKey.generate_key(2048, {"kid": "k"})
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}), encoding="utf-8")
    overrides = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "super.users": "User:admin;User:robot;User:CN=admin",
        **SESSION,
    }

    def token(user: str) -> str:
        claims = {"sub": user, "iat": int(time.time()), "exp": int(time.time()) + TOKEN_S}
        return jwt.encode({"alg": "RS256", "kid": "k"}, claims, key)

    with Cluster(folder / "c", 1, overrides=overrides, secure=True) as started:
        yield Secure(cluster=started, token=token)


def write(frame: DataFrame, options: dict[str, str], topic: str) -> None:
    frame.write.format(FORMAT).options(**options).option("topic", topic).mode("append").save()


def numbers_of(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def test_a_batch_is_written_and_read_through_tls_after_a_login(spark: SparkSession, secure: Secure) -> None:
    options = secure.by_password
    write(spark.range(100).selectExpr("CAST(id AS STRING) AS value"), options, "secure")
    found = spark.read.format(FORMAT).options(**options).option("subscribe", "secure").load()
    assert numbers_of(found) == list(range(100))
    plan = found._jdf.queryExecution().toString()
    assert secure.cluster.login["sasl_plain_password"] not in plan


def test_our_source_and_sink_log_in_by_a_token_in_a_file(spark: SparkSession, secure: Secure, tmp_path: Path) -> None:
    """The driver and its tasks read the file whenever they log in, so that another program can renew the token."""
    path, seen = tmp_path / "token", list[int]()
    options = secure.by_token(path)

    def take(frame: DataFrame, _: int) -> None:
        seen.extend(numbers_of(frame))

    for start in (0, 100):
        token = secure.token("robot")
        path.write_text(token, encoding="utf-8")
        write(spark.range(start, start + 100).selectExpr("CAST(id AS STRING) AS value"), options, "by-token")
        stream = spark.readStream.format(FORMAT).options(**options).option("subscribe", "by-token")
        source = stream.option("startingOffsets", "earliest").load()
        writer = source.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(STREAM_DEADLINE_S), "the query did not end"
        plan = source._jdf.queryExecution().toString()
        assert token not in plan and sorted(seen) == list(range(start + 100))
        kept = (file.read_bytes() for file in (tmp_path / "checkpoint").rglob("*") if file.is_file())
        assert not any(token.encode() in data for data in kept)


def test_a_token_of_no_user_or_of_another_service_is_refused(
    spark: SparkSession, secure: Secure, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    options = secure.by_token(path)
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    path.write_text(secure.token("robot")[:-8], encoding="utf-8")
    with pytest.raises(Exception, match="SASL mechanism OAUTHBEARER"):
        write(frame, options, "refused")
    path.write_text(secure.token("mallory"), encoding="utf-8")  # a user, without permissions
    with pytest.raises(Exception, match=r"(?i)not authorized|AUTHORIZATION|permission"):
        write(frame, options, "refused")


def test_sparks_own_source_and_sink_for_kafka_log_in_by_scram(secure: Secure, tmp_path: Path) -> None:
    """In a process of its own: a session that runs has the jars with which it began."""
    if java_client.find():
        pytest.skip(java_client.find())
    libraries = java_client.fetch(tmp_path / "jars", java_client.SPARKS_KAFKA, "spark_kafka.xml", of="spark")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(secure.by_password), encoding="utf-8")
    jars = ",".join(str(path) for path in sorted(libraries.glob("*.jar")))
    tests = Path(__file__).resolve().parent.parent
    ended = subprocess.run(
        [sys.executable, "-m", "integration.spark_kafka_driver", str(settings), str(tmp_path), jars],
        cwd=tests, env=clean_environment() | {"PYTHONPATH": os.fspath(tests)},
        capture_output=True, text=True, timeout=DRIVER_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4_000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["batch"] == found["first"] == list(range(RECORDS))
    assert found["second"] == list(range(RECORDS, 2 * RECORDS))
    assert secure.cluster.login["sasl_plain_password"] not in ended.stdout + ended.stderr
