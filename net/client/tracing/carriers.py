"""How propagators of OpenTelemetry read and write the headers of records. Imports OpenTelemetry."""

from collections.abc import Sequence

from opentelemetry.propagators.textmap import Getter, Setter

Header = tuple[str, bytes | None]


class HeaderSetter(Setter[list[Header]]):
    """Adds to a list of headers, in place of one of the same name."""

    def set(self, carrier: list[Header], key: str, value: str) -> None:
        carrier[:] = [item for item in carrier if item[0].lower() != key.lower()]
        carrier.append((key, value.encode()))


class HeaderGetter(Getter[Sequence[Header]]):
    def get(self, carrier: Sequence[Header], key: str) -> list[str] | None:
        found = [
            value.decode("utf-8", "replace")
            for name, value in carrier
            if name.lower() == key.lower() and value is not None
        ]
        return found or None

    def keys(self, carrier: Sequence[Header]) -> list[str]:
        return [name for name, _ in carrier]
