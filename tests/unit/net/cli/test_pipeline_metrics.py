"""`barnabas pipeline run --metrics`: what is served, and addresses that cannot be."""

import asyncio
import socket
from pathlib import Path

import pytest

from barnabas.net.cli.frame.exit_codes import CommandError
from barnabas.net.cli.pipeline.metrics_server import pipeline_metrics, served
from barnabas.net.programs.pipeline.files import PipelineFile, read_pipeline
from barnabas.net.programs.pipeline.state import RunProgress

TEXT = 'name = "p"\n[source]\ntopics = ["t"]\nvalue = { format = "text" }\n[sink]\nconsole = true\n'


@pytest.fixture
def found(tmp_path: Path) -> PipelineFile:
    (tmp_path / "p.toml").write_text(TEXT)
    return read_pipeline(tmp_path / "p.toml")


async def asked(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_metrics_are_those_of_the_moment(found: PipelineFile) -> None:
    folder = found.state_folder()
    folder.prepare()
    async with served(pipeline_metrics(found), "127.0.0.1:0") as port:
        assert 'barnabas_pipeline_rows_total{pipeline="p"} 0' in await asked(port, "/metrics")
        folder.write_progress(RunProgress(rows=7))
        answer = await asked(port, "/metrics")
        assert 'barnabas_pipeline_rows_total{pipeline="p"} 7' in answer and "text/plain; version=0.0.4" in answer
        assert " 404 " in (await asked(port, "/")).splitlines()[0]


async def test_without_an_address_nothing_is_served(found: PipelineFile) -> None:
    async with served(pipeline_metrics(found), "") as port:
        assert port == 0


@pytest.mark.parametrize("address", ["9400", ":9400", "localhost", "localhost:x", "localhost:70000"])
async def test_addresses_that_are_none(found: PipelineFile, address: str) -> None:
    with pytest.raises(CommandError, match="give HOST:PORT"):
        async with served(pipeline_metrics(found), address):
            pass


async def test_an_address_that_is_taken(found: PipelineFile) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CommandError, match=f"--metrics {address}: .*choose another address"):
            async with served(pipeline_metrics(found), address):
                pass
