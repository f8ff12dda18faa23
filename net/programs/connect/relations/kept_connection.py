"""`KeptConnection`: a connection for looking at a database again and again, which is replaced when it is lost."""

from collections.abc import Callable
from typing import Any, TypeVar

from .relation import SqlRelation

T = TypeVar("T")


class KeptConnection:
    def __init__(self, relation: SqlRelation) -> None:
        self._relation = relation
        self._connection: Any = None

    def ask(self, question: Callable[[Any], T]) -> T:
        """The answer, in a transaction that ends with it. If the connection was lost since the last question, a new one answers.
        Raises what the relation raises."""
        if not self._relation.keeps_connections:
            with self._relation.connected() as connection:
                return question(connection)
        if self._connection is not None:
            try:
                return self._answer(question)
            except Exception:
                if not self._is_lost:
                    raise
                self.close()
        self._connection = self._relation.opened()
        return self._answer(question)

    @property
    def _is_lost(self) -> bool:
        return self._connection is None or self._relation.is_broken(self._connection)

    def _answer(self, question: Callable[[Any], T]) -> T:
        connection = self._connection
        with self._relation.told_errors(connection):
            try:
                return question(connection)
            finally:
                if not self._relation.is_broken(connection):
                    connection.rollback()  # so that the server may remove old rows between two looks

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
