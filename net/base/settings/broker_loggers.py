"""The levels of this broker's loggers, which Kafka's tools read and set (KIP-412). Changes last until the broker stops.

`root` is the root logger. A logger without a level of its own inherits the level of its parent.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.log.vocabulary.errors import InvalidConfigError, InvalidRequestError

ROOT = "root"
_TRACE = 5  # below DEBUG; Barnabas logs nothing at this level, so it shows the same lines as DEBUG
_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": _TRACE,
}  # Kafka's names, the highest level first


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerLevel:
    name: str
    level: str


def levels() -> list[LoggerLevel]:
    """The levels of all loggers. A level between two of Kafka's levels is reported as the higher one."""
    return [LoggerLevel(name=name, level=_level_of(logger)) for name, logger in sorted(_loggers().items())]


def change_levels(changes: Mapping[str, str | None], *, validate_only: bool) -> None:
    """Set the levels; None removes a logger's own level. Either all changes are made, or none.

    Raises InvalidConfigError for an unknown logger or level, InvalidRequestError for the root without a level.
    """
    loggers = _loggers()
    for name, level in changes.items():
        if name not in loggers:
            raise InvalidConfigError(f"there is no logger {name!r}; describe the broker's loggers to list their names")
        if level is None and name == ROOT:
            raise InvalidRequestError("the level of the root logger cannot be removed; set another level")
        if level is not None and level not in _LEVELS:
            raise InvalidConfigError(f"{name}={level}: the level must be one of {', '.join(_LEVELS)}")
    if validate_only:
        return
    for name, level in changes.items():
        loggers[name].setLevel(logging.NOTSET if level is None else _LEVELS[level])


def _loggers() -> dict[str, logging.Logger]:
    known = list(logging.root.manager.loggerDict.items())  # another thread may import a module
    return {ROOT: logging.root} | {name: found for name, found in known if isinstance(found, logging.Logger)}


def _level_of(logger: logging.Logger) -> str:
    effective = logger.getEffectiveLevel()
    return next((name for name, level in reversed(_LEVELS.items()) if level >= effective), "FATAL")
