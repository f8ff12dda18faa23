"""Java-style properties files, such as Kafka's server.properties. Pure."""

from collections.abc import Iterable

from barnabas.log.vocabulary.errors import InvalidConfigError

_SECRET = ("password", "jaas")  # in the names of keys whose values an error must not show


def parse_properties(text: str) -> dict[str, str]:
    """Read a Java-style properties file: `key=value`, `key: value`, `#` and `!` comments, `\\` continues a line.

    Raises InvalidConfigError for a line without a key, and for a key that occurs twice with different values: the parser does
    not guess which value is meant.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        cut = min((line.find(mark) for mark in "=:" if mark in line), default=len(line))
        key, value = line[:cut].strip(), line[cut + 1 :].strip()
        if not key or cut == len(line):
            raise InvalidConfigError(f"line {number} is not key=value: {line!r}")
        if found.get(key, value) != value and any(word in key for word in _SECRET):
            raise InvalidConfigError(f"line {number}: {key} occurs twice; keep one")
        if found.get(key, value) != value:
            raise InvalidConfigError(f"line {number}: {key} occurs twice, as {found[key]!r} and {value!r}; keep one")
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
