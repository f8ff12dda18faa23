"""`SlotReporter`: tells the cluster, and whoever asks for metrics, how the slot of a capture is. It disturbs neither.

It has a connection of its own to the server for each look, so a capture that hangs is seen, too.
"""

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import psycopg

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.client.positions.slot_reports import SLOTS_TOPIC, SLOTS_TOPIC_CONFIGS, SlotReport
from barnabas.net.programs.copying.reporting import ReportSender, reporting

from .catalog import slot_of
from .changes.faults import ConnectorError
from .server import close, connect, first_line

logger = logging.getLogger("barnabas.connect")

INTERVAL_S: Final = 15.0
REPORT_LIMIT_S: Final = 30.0  # a server that is paused keeps its connections, and answers nothing
_HELP: Final = {
    "active": "1 if a program reads the slot.",
    "lost": "1 if the slot does not exist, or the server has discarded log that it needs.",
    "lag_bytes": "Log of the server behind the confirmed position.",
    "retained_bytes": "Log that the server keeps for the slot.",
    "safe_bytes": "Log that can be written before the slot may be lost. Absent without a limit.",
}


class SlotReporter:
    def __init__(
        self,
        *,
        program: str,
        dsn: str,
        slot: str,
        warn_bytes: int,
        bootstrap: str,
        security: Mapping[str, Any],
        interval_s: float = INTERVAL_S,
        limit_s: float = REPORT_LIMIT_S,
    ) -> None:
        self._program = program
        self._dsn = dsn
        self._slot = slot
        self._warn_bytes = warn_bytes
        self._sender = ReportSender(
            topic=SLOTS_TOPIC,
            configs=SLOTS_TOPIC_CONFIGS,
            client_id="barnabas-slots",
            bootstrap=bootstrap,
            security=security,
        )
        self._interval_s = interval_s
        self._limit_s = limit_s
        self.newest: SlotReport | None = None  # None: the server has not answered yet

    def running(self) -> AbstractAsyncContextManager[None]:
        """Report while the context is open, and once more at its end: then the slot may be gone."""
        return reporting(self._run(), self._report)

    async def _run(self) -> None:
        while True:
            await self._report()
            await asyncio.sleep(self._interval_s)

    async def _report(self) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                await self._look()
                if self.newest is not None:
                    await self._sender.send(self.newest.program, self.newest)
        except (BarnabasError, ConnectorError, psycopg.Error, OSError) as error:
            logger.info("slot not reported slot=%s reason=%s", self._slot, first_line(error))

    async def _look(self) -> None:
        connection = await connect(self._dsn)
        try:
            found = await slot_of(connection, self._slot)
            info = connection.info
            server = f"{info.host or 'local'}:{info.port}/{info.dbname}"
        finally:
            await close(connection)
        if found is None and self.newest is None:
            return  # the first start of the program has not made it yet
        self.newest = SlotReport(
            program=self._program,
            slot=self._slot,
            server=server,
            at_ms=int(time.time() * 1_000),
            interval_ms=int(self._interval_s * 1_000),
            warn_bytes=self._warn_bytes,
            exists=found is not None,
            is_active=found is not None and found.active_pid is not None,
            wal_status="" if found is None else found.wal_status,
            lag_bytes=0 if found is None else found.lag_bytes,
            retained_bytes=0 if found is None else found.retained_bytes,
            safe_bytes=None if found is None else found.safe_bytes,
        )


def rendered(reporters: Sequence[SlotReporter]) -> str:
    """In Prometheus' text format. What the server said long ago is left out: a slot that cannot be seen must not look well."""
    lines = []
    now_ms = int(time.time() * 1_000)
    newest = [reporter.newest for reporter in reporters]
    reports = [report for report in newest if report is not None and not report.is_silent(now_ms)]
    for name, words in _HELP.items():
        full = f"barnabas_postgres_slot_{name}"
        values = [(report, value) for report in reports if (value := dict(_values(report)).get(name)) is not None]
        if values:
            lines += [f"# HELP {full} {words}", f"# TYPE {full} gauge"]
        for report, value in values:
            labels = f"program={json.dumps(report.program)},slot={json.dumps(report.slot)}"
            lines.append(f"{full}{{{labels}}} {value:.16g}")
    return "".join(f"{line}\n" for line in lines)


def _values(report: SlotReport) -> Iterator[tuple[str, float | None]]:
    yield "active", report.is_active
    yield "lost", report.is_lost
    if report.exists:
        yield "lag_bytes", report.lag_bytes
        yield "retained_bytes", report.retained_bytes
        yield "safe_bytes", report.safe_bytes
