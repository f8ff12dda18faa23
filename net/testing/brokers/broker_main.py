"""A broker process under test: `python -m barnabas.net.testing.brokers.broker_main --control FOLDER --config FILE`.

It is the process of `barnabas broker start`, with faults behind its ports, and a Unix socket on which it takes orders.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from barnabas.net.base.settings.config import load

from ...broker.broker import Ports
from ...broker.broker_process import run
from ..faults.fault_board import FaultBoard
from ..faults.orders import Answer, decode_order, encode


def socket_path(control: Path, node_id: int) -> Path:
    return control / f"{node_id}.sock"


class _Control:
    """Carries out the orders that arrive on the socket, one a connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._board: FaultBoard | None = None
        self._task: asyncio.Task[None] | None = None

    def adapt(self, ports: Ports) -> Ports:
        """Runs on the broker's loop before the broker is built."""
        self._board = FaultBoard()
        self._task = asyncio.get_running_loop().create_task(self._serve())
        return self._board.adapted(ports)

    async def _serve(self) -> None:
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._answer, str(self._path))
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._board is not None
        try:
            answer = Answer(result=await self._board.carry_out(decode_order(await reader.readline())))
        except Exception as error:  # noqa: BLE001 - the test is told
            answer = Answer(failed=f"{type(error).__name__}: {error}")
        writer.write(encode(answer))
        await writer.drain()
        writer.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--config", required=True)
    arguments = parser.parse_args()
    config = load(arguments.config, {}, os.environ)
    return run(config, adapt=_Control(socket_path(arguments.control, config.node_id)).adapt)


if __name__ == "__main__":
    sys.exit(main())
