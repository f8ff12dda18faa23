"""Write the tables of docs/configuration.md from the table of configuration keys: `.venv/bin/python scripts/document_keys.py`.
With `--check`, only report whether the page is up to date: exit code 1 if it is not."""

import sys
from collections.abc import Iterable
from pathlib import Path

from barnabas.log.settings.key import Change, ConfigKey
from barnabas.log.settings.kinds import MAX_DOUBLE, MAX_INT32, MAX_INT64, Unit
from barnabas.log.settings.table import BROKER_KEYS
from barnabas.log.settings.without_effect import BROKER_KEYS_WITHOUT_EFFECT, TOPIC_KEYS_WITHOUT_EFFECT

PAGE = Path(__file__).resolve().parents[1] / "docs/configuration.md"
NO_LIMITS = (MAX_INT32, MAX_INT64, MAX_DOUBLE)
CHANGES = {Change.AT_START: "restart", Change.WHILE_RUNNING: "dynamic", Change.FOR_THE_CLUSTER: "cluster"}


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (header, ("---",) * len(header), *rows)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines).replace("|  |", "| |")


def allowed(row: ConfigKey) -> str:
    if row.kind.bounds is None or ", or " in row.kind.allowed:
        return row.kind.allowed
    low, high = row.kind.bounds
    values = (
        f"{int(low)} or more" if high in NO_LIMITS else f"{int(low)} to {int(high)}"
    )  # all bounds are whole numbers
    return values if row.kind.unit is Unit.NONE else f"{values} ({row.kind.unit.value})"


def keys() -> str:
    header = ("Key", "Default", "Allowed", "Changes", "Per topic", "Meaning")
    rows = (
        (
            f"`{row.name}`",
            row.default_text or "",
            allowed(row),
            CHANGES[row.change],
            f"`{row.topic_key}`" if row.topic_key else "",
            row.documentation,
        )
        for row in BROKER_KEYS.values()
    )
    return table(header, rows)


def keys_without_effect() -> str:
    found = (*TOPIC_KEYS_WITHOUT_EFFECT.values(), *BROKER_KEYS_WITHOUT_EFFECT.values())
    of_topics = {row.name for row in TOPIC_KEYS_WITHOUT_EFFECT.values()}
    return table(
        ("Key", "Of", "Why it has no effect"),
        (
            (f"`{row.name}`", "topics" if row.name in of_topics else "brokers", row.no_effect)
            for row in sorted(found, key=lambda row: row.name)
        ),
    )


def written(page: str) -> str:
    for name, text in (("keys", keys()), ("keys without effect", keys_without_effect())):
        begin, end = f"<!-- {name}: written by scripts/document_keys.py -->\n", f"\n<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, found_end, after = rest.partition(end)
        assert found and found_end, f"docs/configuration.md has no place for the {name}"
        page = before + begin + text + end + after
    return page


def main() -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if "--check" in sys.argv[1:]:
        if after != before:
            print("docs/configuration.md is not up to date: run .venv/bin/python scripts/document_keys.py")
        return int(after != before)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
