"""Java-style properties files, such as Kafka's server.properties. Pure."""

from collections.abc import Iterable

from barnabas.log.vocabulary.errors import InvalidConfigError


def parse_properties(text: str) -> dict[str, str]:
    """Read a Java-style properties file: `key=value`, `key: value`, `#` and `!` comments, `\\` continues a line.

    Raises InvalidConfigError for a line without a key, and for a key that occurs twice with different values: the parser does
    not guess which value is meant. No error shows a value: it may be a password, a client's secret or a line of a private key.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        cut = min((line.find(mark) for mark in "=:" if mark in line), default=len(line))
        key, value = line[:cut].strip(), line[cut + 1 :].strip()
        if not key or cut == len(line):
            raise InvalidConfigError(
                f"line {number} is not key=value; a value that goes on needs \\ at the end of each line but the last"
            )
        if found.get(key, value) != value:
            raise InvalidConfigError(f"line {number}: {key} occurs twice, with different values; keep one")
        found[key] = value
    return found


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    pending = ""
    start = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not pending:
            if not line or line[0] in "#!":
                continue
            start = number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        yield start, pending + line
        pending = ""
    if pending:
        yield start, pending
