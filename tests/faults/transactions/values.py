"""The values of records: each names its transaction and says whether it was meant to be committed."""

from typing import NamedTuple

from ..history import Partition


class Value(NamedTuple):
    transaction: str
    number: int  # among the records of the transaction
    size: int  # how many records it has
    is_meant: bool  # to be committed
    payload: str  # a sum of money, or the record that this one was made of (`origin`)

    def text(self) -> str:
        intent = "commit" if self.is_meant else "abort"
        return f"{self.transaction}|{self.number}/{self.size}|{intent}|{self.payload}"


def parsed(text: str) -> Value | None:
    """None: no record of a transaction."""
    parts = text.split("|")
    if len(parts) != 4:
        return None
    number, _, size = parts[1].partition("/")
    return Value(parts[0], int(number), int(size), parts[2] == "commit", parts[3])


def values_of(transaction: str, payloads: list[str], *, is_meant: bool) -> list[str]:
    return [
        Value(transaction, index, len(payloads), is_meant, payload).text() for index, payload in enumerate(payloads)
    ]


def origin(partition: Partition, offset: int) -> str:
    return f"{partition[0]}-{partition[1]}@{offset}"
