"""The admin API's port to this broker: its metadata and metrics, and an admin client that reaches it without a network."""

from collections.abc import Sequence
from typing import Final

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.settings.principal_rules import PrincipalRules
from barnabas.log.vocabulary.principal import Principal

from ..admin.frame.backend import Sample
from ..client.admin.admin import Admin
from ..client.connection.client import Client, Home
from ..client.connection.ports import Connection
from ..server.access.access import AccessControl
from ..server.logins.http import http_login
from .broker import Broker
from .in_process import HERE, InProcessConnection, InProcessPool
from .metrics import samples

CALL_TIMEOUT_MS: Final = 30_000  # of a call including retries; a broker searches for the controller for the same time
CLIENT_ID: Final = "admin-api"


class BrokerBackend:
    """Implements admin.frame.backend.AdminBackend."""

    def __init__(self, broker: Broker, host_names: frozenset[str] = frozenset()) -> None:
        self._broker = broker
        self._host_names = host_names
        self._here = InProcessConnection(
            broker.dispatcher, broker.config.inter_broker_listener(), CLIENT_ID, broker.node_id
        )

    @property
    def node_id(self) -> int:
        return self._broker.node_id

    def host_names(self) -> frozenset[str]:
        return self._host_names

    def allowed_origins(self) -> tuple[str, ...]:
        return self._broker.config.admin_allowed_origins

    def image(self) -> MetadataImage:
        return self._broker.metadata.image

    @property
    def are_metrics_public(self) -> bool:
        return self._broker.config.metrics_public

    @property
    def schema_registry(self) -> str:
        return self._broker.config.admin_schema_registry_url or ""

    @property
    def console(self) -> str:
        return self._broker.config.admin_console

    def is_ready(self) -> tuple[bool, str]:
        broker = self._broker
        if broker.shutdown_requested.is_set():
            return False, "the broker is stopping"
        if broker.metadata.leadership.leader_id is None:
            return False, "the quorum has no leader"
        if not broker.lifecycle.unfenced.is_set():
            return False, "the broker is not registered yet, or the controller has fenced it"
        offline = broker.logs.offline_folders
        # Clients find their leaders in the metadata: a broker with a failed folder serves the others, and reports the folder.
        return True, "serving" if not offline else f"serving without the data folders {', '.join(offline)}"

    def metrics(self) -> Sequence[Sample]:
        return samples(self._broker)

    @property
    def access(self) -> AccessControl | None:
        return self._broker.access

    async def log_in(self, authorization: str, client_host: str, again: Principal | None = None) -> Principal:
        return await http_login(self._broker.authenticator, authorization, client_host, again)

    @property
    def principal_rules(self) -> PrincipalRules:
        config = self._broker.config
        address = config.admin_address()
        return (config if address is None else config.for_listener(address.name)).ssl_principal_mapping_rules

    @property
    def here(self) -> Connection:
        return self._here

    def admin(self) -> Admin:
        broker = self._broker
        client = Client(
            client_id=CLIENT_ID,
            request_timeout_ms=CALL_TIMEOUT_MS,
            clock=broker.ports.clock,
            rng=broker.ports.rng,
            new_pool=lambda: InProcessPool(self._here, broker.node_id, broker.controller, broker.pool),
            home=Home(broker.node_id, HERE),
        )
        return Admin(client=client, timeout_ms=CALL_TIMEOUT_MS)
