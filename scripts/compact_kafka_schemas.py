"""Make net/wire/protocol/kafka/messages.json of a folder with Apache Kafka's message schemas (JSON with // comments):
`python scripts/compact_kafka_schemas.py FOLDER`. Descriptions and comments are left out.
Run `scripts/kafka_stubs.py` afterwards: the types of the messages follow from this file."""

import json
import re
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "net/wire/protocol/kafka/messages.json"
KEPT = (
    "apiKey", "name", "validVersions", "flexibleVersions", "versions", "type", "nullableVersions", "default", "tag",
    "taggedVersions", "fields", "commonStructs",
)  # fmt: skip


def read_schema(text: str) -> dict[str, Any]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("//"))
    found: dict[str, Any] = json.loads("\n".join(re.sub(r"\s//\s.*$", "", line) for line in lines))
    return found


def compact(raw: Any) -> Any:
    if isinstance(raw, list):
        return [compact(item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    return {key: compact(raw[key]) for key in KEPT if key in raw}


def main(folder: str) -> None:
    schemas = {}
    paths = sorted(Path(folder).glob("*Request.json"))
    if not paths:
        sys.exit(f"{folder} has no message schemas: give the folder of clients/src/main/resources/common/message")
    for path in sorted(Path(folder).glob("*.json")):
        schema = compact(read_schema(path.read_text()))
        schema.pop("type", None)
        schemas[schema["name"]] = schema
    lines = ",\n".join(json.dumps(schema, separators=(",", ":")) for schema in schemas.values())
    TARGET.write_text(f"[\n{lines}\n]\n")
    print(f"{len(schemas)} messages, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
