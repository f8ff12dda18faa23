"""The file of a connector: what it says, and what an error of it says."""

import re
from pathlib import Path

import pytest

from barnabas.net.cli.main import main
from barnabas.net.programs.connect.postgres.changes.faults import ConfigFileError
from barnabas.net.programs.connect.postgres.changes.settings import SinkSettings, SourceSettings, parse, read_file

SOURCE = """
connector = "postgres-source"
name = "shop"
dsn = "dbname=shop"
publication = "p"
slot = "s"
prefix = "shop"
"""
SINK = 'connector = "postgres-sink"\nname = "copy"\ndsn = "dbname=copy"\n'


def test_what_a_file_does_not_say_has_defaults() -> None:
    found = parse(SOURCE + '[topics]\npartitions = 3\nconfigs = { "cleanup.policy" = "compact" }\n', "f")
    assert isinstance(found, SourceSettings)
    assert found.topics.partitions == 3 and found.topics.configs == {"cleanup.policy": "compact"}
    assert found.tables == ["*.*"] and found.snapshot.mode == "initial" and found.delivery.tombstones
    assert found.position_topic == "__postgres_position.shop"
    sink = parse(SINK + 'topics = ["a"]\n[tables]\na = "public.b"\n', "f")
    assert isinstance(sink, SinkSettings) and sink.tables == {"a": "public.b"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("= 1", r"f is not valid TOML: .*line 1, column 1"),
        ('connector = "kafka"', 'write connector = "postgres-source" or "postgres-sink"'),
        (SOURCE + "publicaton = 1\n", "unknown key publicaton: did you mean publication"),
        (
            SOURCE + "[snapshot]\nchunks = 1\n",
            r"unknown key snapshot\.chunks: did you mean chunk_rows|the keys here are",
        ),
        (SOURCE.replace("slot =", "tables = [1]\n#"), "items must be strings"),
        (SOURCE.replace('slot = "s"', ""), "the key slot is missing"),
        (SOURCE.replace('"s"', "5"), "slot is 5: it must be a string"),
        (SOURCE.replace('prefix = "shop"', 'prefix = "a b"'), "prefix is 'a b'"),
        (SOURCE + 'tables = ["t"]', 'write "schema.table"'),
        (SOURCE + "[delivery]\nmax_records = 0\n", "max_records is 0: it must be at least 1"),
        (SOURCE + '[snapshot]\nmode = "always"\n', 'write "initial" or "never"'),
        (SINK, "either topics"),
        (SINK + 'topics = ["a"]\npattern = "b"\n', "either topics"),
    ],
)
def test_an_error_names_the_key_and_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ConfigFileError, match=says):
        parse(text, "f")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SOURCE + "\n[snapshot]\nreaders = 'two'\n", "c.toml:10:1: snapshot.readers is 'two': it must be an integer"),
        (SOURCE + "tabels = []\n", "c.toml:8:1: unknown key tabels: did you mean tables?"),
        (
            SOURCE + "[snapshot]\n'chunk.rows' = 5\n",
            "c.toml:9:1: unknown key snapshot.chunk.rows: did you mean chunk_rows?",
        ),
        (
            SOURCE.replace('"s"', '"Shop-Slot"'),
            "c.toml:6:1: slot is 'Shop-Slot': PostgreSQL takes up to 63 lower case letters",
        ),
        ("[sink]\ntopic = 'a'\n", "c.toml: the key connector is missing: .*barnabas pipeline run"),
        ("\udcff", "c.toml is not UTF-8 text .byte 0.: save it as UTF-8"),
    ],
)
def test_the_command_names_the_line(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert main(["connect", "run", str(file), "--bootstrap", "127.0.0.1:1"]) == 2
    assert re.search(says, capsys.readouterr().err)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="cannot be read: No such file"):
        read_file(tmp_path / "none.toml")
