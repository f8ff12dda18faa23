"""What the admin API needs of its broker: the port that net/broker/broker.py implements, and that tests fake."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.ports import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one metric. Names end in their unit, counters in `_total`, as Prometheus wants it."""

    name: str
    type: Literal["counter", "gauge"]
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


class AdminBackend(Protocol):
    """One broker, as its admin API sees it."""

    @property
    def node_id(self) -> int: ...

    def host_names(self) -> Collection[str]:
        """The names under which the API may be called; `*`: any."""

    def image(self) -> MetadataImage:
        """The newest metadata that this broker has applied."""

    def is_ready(self) -> tuple[bool, str]:
        """May clients be sent here? And if not, why."""

    def metrics(self) -> Sequence[Sample]:
        """The broker's own metrics, `barnabas_*`."""

    @property
    def here(self) -> Connection:
        """To this broker only, as if a client had connected to it."""

    def admin(self) -> Admin:
        """An admin client for one call, not yet started: what it asks goes to wherever in the cluster it belongs."""
