"""Transcripts: commands and what they lead to, as text that people review. Nothing here knows what the commands mean.

    # a comment
    kill 0
    ----
    broker 0 is fenced
    t-0 leader 1 epoch 1 isr 1,2

A line that is no comment is a command with words; consecutive ones make one block. Behind `----` stands what the block
printed, up to an empty line. `pytest tests/scenarios --rewrite` writes what is printed now: read the diff before you commit it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

RULE = "----"


class World(Protocol):
    """What a scenario plays in."""

    def run(self, command: str, words: list[str]) -> Iterator[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`head` are the lines as they stand, comments and empty ones too; `printed` is None where nothing is expected."""

    head: tuple[str, ...]
    printed: tuple[str, ...] | None

    @property
    def commands(self) -> list[str]:
        return [line for line in self.head if line.strip() and not line.startswith("#")]


def parse(text: str) -> list[Block]:
    blocks: list[Block] = []
    head: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line != RULE:
            head.append(line)
            continue
        printed = tuple(iter(lambda: next(lines, ""), ""))
        blocks.append(Block(head=tuple(head), printed=printed))
        head = []
    if head:
        blocks.append(Block(head=tuple(head), printed=None))
    return blocks


def play(blocks: list[Block], world: World) -> list[Block]:
    """The same blocks with what is printed now."""
    played = []
    for block in blocks:
        printed: list[str] = []
        for command in block.commands:
            first, *words = command.split()
            printed += world.run(first, words)
        played.append(replace(block, printed=tuple(printed) or ("nothing",)) if block.commands else block)
    return played


def render(blocks: list[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        lines += block.head
        if block.printed is not None:
            lines += (RULE, *block.printed, "")
    return "\n".join(lines).rstrip("\n") + "\n"
