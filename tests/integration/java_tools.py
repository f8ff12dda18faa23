"""Kafka's command-line tools, run against a cluster."""

import asyncio
import subprocess
from pathlib import Path

from integration import java_client

TOOL_LIMIT_S = 60.0  # of one call, which takes two seconds where nothing else runs


class Tools:
    def __init__(self, libraries: Path, bootstrap: str) -> None:
        self._libraries = libraries
        self._bootstrap = bootstrap

    async def run(self, main_class: str, *arguments: str) -> str:
        """What a tool prints, complaints included."""
        command = java_client.tool(
            self._libraries, main_class, "--bootstrap-server", self._bootstrap, *" ".join(arguments).split()
        )
        ended = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False
        )
        return str(ended.stdout + ended.stderr)
