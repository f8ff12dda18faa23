"""The file of `--command-config`: how to reach a cluster, in the keys of Kafka's client.properties."""

from dataclasses import dataclass, field
from pathlib import Path

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.settings.properties import parse_properties
from barnabas.net.client.connection.kafka_options import security_options
from barnabas.net.client.connection.security import SecurityOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    bootstrap: str | None = None
    security: SecurityOptions = field(default_factory=lambda: SecurityOptions(), repr=False)


def read_client_file(path: Path) -> ClientFile:
    """Keys that have nothing to do with connecting are left to the programs that they are for.

    Raises InvalidConfigError: the file cannot be read, or asks for protection that is not there.
    """
    try:
        given = parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"the file {path} cannot be read: {error}") from error
    return ClientFile(bootstrap=given.get("bootstrap.servers"), security=security_options(given, str(path)))
