"""The tables that a query names, as DuckDB's parser sees them."""

import json
from collections.abc import Iterator
from typing import Any

from ..frame.exit_codes import CommandError, ExitCode


def tables_of(connection: Any, query: str) -> list[str]:
    """Names of tables that the query itself does not define. Raises CommandError for what is no single SELECT."""
    ((text,),) = connection.execute("select json_serialize_sql(?)", [query]).fetchall()
    tree = json.loads(text)
    if tree.get("error"):
        raise CommandError(f"the query cannot be read: {tree.get('error_message')}", ExitCode.USAGE)
    if len(tree["statements"]) != 1:
        raise CommandError("give one SELECT statement", ExitCode.USAGE)
    nodes = list(_objects(tree["statements"]))
    defined = {entry["key"].lower() for node in nodes for entry in node.get("cte_map", {}).get("map", ())}
    named = {
        ".".join(filter(None, (node.get("schema_name"), node["table_name"]))): None
        for node in nodes
        if node.get("type") == "BASE_TABLE"
    }
    return [name for name in named if name.lower() not in defined]


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a JSON document."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(reversed(list(node.values())))
        elif isinstance(node, list):
            waiting.extend(reversed(node))
