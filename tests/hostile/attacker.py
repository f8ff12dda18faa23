"""An attacker is a process of its own, so that its work is not measured as that of brokers or of honest clients.

`python -m hostile.attacker NAME HOST:PORT ...` says "under way" on its output once it is, goes on until its input has a line
or ends, and then ends itself: with 1 and a traceback where the attack succeeded.
"""

import asyncio
import os
import resource
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from .attack import Address, Attack
from .catalogue import ATTACKS

UNDER_WAY = b"under way\n"
NICENESS = 5  # attackers have machines of their own; here they must not take the brokers' processors
TESTS = Path(__file__).resolve().parent.parent


class AttackSucceeded(Exception):
    """A broker did what it should have refused, or the attacker itself failed; the message is the end of its traceback."""


@asynccontextmanager
async def attacking(attack: Attack, brokers: Sequence[Address]) -> AsyncIterator[None]:
    """The attack is under way inside of this context, and has ended after it."""
    addresses = [f"{host}:{port}" for host, port in brokers]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hostile.attacker", attack.name, *addresses,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    try:
        if await process.stdout.readline() == UNDER_WAY:
            yield
            process.stdin.close()
        if await process.wait():
            raise AttackSucceeded(f"{attack.name}: {(await errors).decode()[-800:]}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await asyncio.gather(errors, process.stdout.read())  # to its end, which closes the pipe


async def _main(name: str, brokers: Sequence[Address]) -> None:
    async with ATTACKS[name].run(brokers):
        sys.stdout.buffer.write(UNDER_WAY)
        sys.stdout.buffer.flush()
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    os.nice(NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_main(sys.argv[1], [(one.rpartition(":")[0], int(one.rpartition(":")[2])) for one in sys.argv[2:]]))
