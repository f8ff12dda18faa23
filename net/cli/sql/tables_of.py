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
    entries = [entry for node in nodes for entry in node.get("cte_map", {}).get("map", ())]
    defined = {entry["key"].lower() for entry in entries} - {entry["key"].lower() for entry in entries if _reads(entry)}
    named = {
        ".".join(filter(None, (node.get("schema_name"), node["table_name"]))): None
        for node in nodes
        if node.get("type") == "BASE_TABLE"
    }
    return [name for name in named if name.lower() not in defined]


def _reads(entry: Any) -> bool:
    """Whether a common table expression reads a table of its own name: `with t as (select * from t where ...)`."""
    if entry["value"].get("query_node", {}).get("type") == "RECURSIVE_CTE_NODE":
        return False
    return any(
        node.get("type") == "BASE_TABLE" and node["table_name"].lower() == entry["key"].lower()
        for node in _objects(entry["value"])
    )


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
