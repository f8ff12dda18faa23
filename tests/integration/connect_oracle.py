"""What triggers of the source write down of each row's life, and whether a topic tells the same, key by key.

A trigger runs while its transaction holds the row, so the order of the notes of one key is the order of its commits. A topic
begins with what the snapshot saw: from there on, every change has to follow, once, with its values, to the end.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
from integration.cluster import Cluster
from integration.whole_topic import messages

KEYS: Mapping[str, tuple[str, ...]] = {"accounts": ("id",), "tags": ("name", "number")}
Key = tuple[Any, ...]
Row = Mapping[str, str] | None
Life = list[tuple[str, Row]]  # op and row after it; "t" for a truncation that ended the row

_CREATE = """
    CREATE TABLE notes (n bigserial PRIMARY KEY, name text, op text, old jsonb, new jsonb);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'TRUNCATE' THEN INSERT INTO notes (name, op) VALUES (TG_TABLE_NAME, 't');
        ELSIF TG_OP = 'INSERT' THEN INSERT INTO notes (name, op, new) VALUES (TG_TABLE_NAME, 'c', to_jsonb(NEW));
        ELSIF TG_OP = 'DELETE' THEN INSERT INTO notes (name, op, old) VALUES (TG_TABLE_NAME, 'd', to_jsonb(OLD));
        ELSE INSERT INTO notes (name, op, old, new) VALUES (TG_TABLE_NAME, 'u', to_jsonb(OLD), to_jsonb(NEW));
        END IF;
        RETURN NULL;
    END $$"""


def watch(dsn: str, keys: Mapping[str, tuple[str, ...]] = KEYS) -> None:
    """From now on, every change of these tables is noted, behind the rows that they have."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_CREATE)
        for table in keys:
            connection.execute(
                f"CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION note()"
            )
            connection.execute(f"CREATE TRIGGER b AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION note()")
            connection.execute(f"INSERT INTO notes (name, op, new) SELECT '{table}', 'c', to_jsonb(x) FROM {table} x")


def check(cluster: Cluster, prefix: str, dsn: str, partitions: int, keys: Mapping[str, tuple[str, ...]] = KEYS) -> int:
    """Every change of every key; returns how many changes the topics have."""
    count = 0
    for table, key in keys.items():
        told = _told(messages(cluster.bootstrap, f"{prefix}.public.{table}", partitions=partitions), key)
        noted = _noted(dsn, table, key)
        assert told.keys() <= noted.keys(), f"{table} has keys that never were"
        for place, life in noted.items():
            _check_life(f"{table} {place}", life, told.get(place, []))
        count += sum(map(len, told.values()))
    return count


def _check_life(name: str, noted: Life, told: Life) -> None:
    begun: Row = None
    if told and told[0][0] == "r":
        begun, told = told[0][1], told[1:]
    start = len(noted) - len(told)
    assert start >= 0, f"{name}: {len(told)} changes in the topic, {len(noted)} in the table"
    assert noted[start:] == told, f"{name}: {_difference(noted[start:], told)}"
    before = noted[start - 1][1] if start else None
    assert before == begun, f"{name}: the snapshot has {begun}, and the changes go on from {before}"


def _difference(noted: Life, told: Life) -> str:
    number = next(number for number, (left, right) in enumerate(zip(noted, told, strict=True)) if left != right)
    return f"change {number} of {len(noted)} is {told[number]} in the topic and {noted[number]} in the table"


def _noted(dsn: str, table: str, key: tuple[str, ...]) -> dict[Key, Life]:
    lives: dict[Key, Life] = defaultdict(list)
    with psycopg.connect(dsn) as connection:
        notes = connection.execute("SELECT op, old, new FROM notes WHERE name = %s ORDER BY n", (table,)).fetchall()
    for op, old, new in notes:
        if op == "t":
            _end_all(lives)
            continue
        if op == "u" and _key(old, key) != _key(new, key):
            lives[_key(old, key)].append(("d", None))
            op = "c"
        lives[_key(new or old, key)].append((op, _texts(new)))
    return lives


def _told(found: Iterable[Any], key: tuple[str, ...]) -> dict[Key, Life]:
    lives: dict[Key, Life] = defaultdict(list)
    by_partition: dict[int, dict[Key, Life]] = defaultdict(dict)
    generation: dict[Key, int] = {}
    tombstones: dict[int, bytes | None] = {}  # the key of the delete before, which one has to follow
    for message in found:
        partition, value = message.partition(), message.value()
        due = tombstones.pop(partition, None)
        assert (value is None) == (due is not None), (
            f"{message.key()}: a tombstone follows each delete, and nothing else"
        )
        if value is None:
            assert message.key() == due
            continue
        change = json.loads(value)
        if change["op"] == "t":
            _end_all(by_partition[partition])
            continue
        place = _key(json.loads(message.key()), key)
        if generation.get(place, 0) < change["source"]["generation"]:
            generation[place] = change["source"]["generation"]
            lives[place].clear()  # the table was read again
        lives[place].append((change["op"], _texts(change["after"])))
        by_partition[partition][place] = lives[place]
        if change["op"] == "d":
            tombstones[partition] = message.key()
    assert not tombstones, "a delete without its tombstone"
    return lives


def _end_all(lives: Mapping[Key, Life]) -> None:
    for life in lives.values():
        if life and life[-1][0] not in "dt":
            life.append(("t", None))


def _key(row: Mapping[str, Any], key: tuple[str, ...]) -> Key:
    return tuple(row[name] for name in key)


def _texts(row: Mapping[str, Any] | None) -> Row:
    """Numbers and documents as text: a topic has numeric and jsonb as strings."""
    if row is None:
        return None
    return {
        name: json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in row.items()
        if value is not None
    }
