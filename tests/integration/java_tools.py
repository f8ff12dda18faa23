"""Kafka's command-line tools, run against a cluster."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration import java_client
from integration.cluster import clean_environment

TOOL_LIMIT_S = 60.0  # of one call, which takes two seconds where nothing else runs


class ToolRunner:
    """A JVM that runs tools one after the other: one for each call would compute mostly its own start."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    async def run(self, main_class: str, *arguments: str) -> str:
        """What a tool prints, complaints included. A tool that does not end in time ends the JVM."""
        try:
            async with asyncio.timeout(TOOL_LIMIT_S):
                return await asyncio.to_thread(self._answer, "\t".join((main_class, *arguments)))
        except TimeoutError:
            self._process.kill()
            raise

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        size_bytes = int(self._process.stdout.readline())
        return self._process.stdout.read(size_bytes).decode()


@contextmanager
def tool_runner(libraries: Path) -> Iterator[ToolRunner]:
    command = java_client.tool(libraries, str(java_client.SOURCES / "RunTools.java"))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=clean_environment()
    )
    try:
        yield ToolRunner(process)
    finally:
        process.kill()
        process.communicate()


class Tools:
    """The tools with the address of a cluster."""

    def __init__(self, runner: ToolRunner, bootstrap: str) -> None:
        self._runner = runner
        self._bootstrap = bootstrap

    async def run(self, main_class: str, *arguments: str) -> str:
        """What a tool prints, complaints included. Words are separated by spaces, also within an argument."""
        return await self._runner.run(main_class, "--bootstrap-server", self._bootstrap, *" ".join(arguments).split())
