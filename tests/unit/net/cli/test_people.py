"""What people meet around the commands: profiles, completion, near names, colours."""

import io
import json
import os
import pty
import select
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.cli.frame import profile_file
from barnabas.net.cli.frame.output import Output
from barnabas.net.cli.main import connection_of, main
from barnabas.net.cli.verbs.completion import SCRIPTS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def home(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("BARNABAS_BOOTSTRAP", "BARNABAS_COMMAND_CONFIG", "BARNABAS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def bootstrap(**given: str) -> str:
    import argparse

    names = ("bootstrap", "command_config", "profile")
    return connection_of(argparse.Namespace(**{name: given.get(name) for name in names}), object())[1]


def test_a_profile_from_its_beginning_to_its_end(
    run: Any, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run("profile", "list") == (0, "", "") and bootstrap() == "localhost:9092"
    assert run("profile", "add", "one", "--bootstrap", "h:1")[0] == 0
    client = tmp_path / "client.properties"
    client.write_text("bootstrap.servers=h:2\n")
    assert run("profile", "add", "two", "--command-config", str(client))[0] == 0
    path = home / "barnabas" / "profiles.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert bootstrap() == "h:1" and bootstrap(profile="two") == "h:2" and bootstrap(bootstrap="h:3") == "h:3"
    assert run("profile", "use", "two")[0] == 0
    assert [(row["profile"], row["used"]) for row in json.loads(run("profile", "list", "-f", "json")[1])] == [
        ("one", False),
        ("two", True),
    ]
    monkeypatch.setenv("BARNABAS_PROFILE", "one")
    assert bootstrap() == "h:1"
    monkeypatch.delenv("BARNABAS_PROFILE")
    assert run("profile", "remove", "two")[0] == 0
    assert bootstrap() == "localhost:9092"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("profile add x", 2, "say how to reach the cluster: --bootstrap HOST:PORT, --command-config FILE"),
        ("profile add x --bootstrap h:x", 2, "give HOST:PORT[,HOST:PORT...]"),
        ("profile add x --command-config /none/such", 1, "/none/such cannot be read"),
        ("profile add one --bootstrap h:1", 1, "there is a profile 'one'; --replace replaces it"),
        ("profile use onee", 2, "there is no profile 'onee' (did you mean one?)"),
        ("--profile onee topic list", 2, "there is no profile 'onee' (did you mean one?)"),
    ],
)
def test_faults_of_profiles(run: Any, home: Path, arguments: str, code: int, told: str) -> None:
    run("profile", "add", "one", "--bootstrap", "h:1")
    found, _, err = run(*arguments.split())
    assert found == code and told in err


def test_a_damaged_file_is_named(run: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "barnabas").mkdir()
    path = home / "barnabas" / "profiles.json"
    path.write_text("{")
    assert f"{path} is damaged" in run("topic", "list")[2]
    path.write_text("{}")
    monkeypatch.setattr(profile_file, "MAX_BYTES", 1)
    assert "has more than 1 bytes" in run("topic", "list")[2]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("to",), ["top", "topic"]),
        (("topic", "des"), ["describe"]),
        (("topic", "describe", ""), ["t"]),
        (("--profile", "x", "topic", "describe", ""), ["t"]),
        (("topic", "consume", "t", "--grep-"), ["--grep-key", "--grep-value"]),
        (("topic", "produce", "t", "-z", "g"), ["gzip"]),
        (("group", "describe", ""), ["g"]),
        (("config", "get", "a", "-t", ""), ["t"]),
        (("topic", "consume", "-g", ""), ["g"]),
        (("completion", ""), ["bash", "fish", "zsh"]),
        (("nonsense", "x"), []),
        (("cluster", "join"), []),
    ],
)
def test_what_completes_a_word(
    run: Any, cluster: FakeCluster, home: Path, words: tuple[str, ...], found: list[str]
) -> None:
    run("profile", "add", "x", "--bootstrap", "h:1")
    cluster.committed["g"] = {}
    assert run("__complete", *words) == (0, "".join(f"{word}\n" for word in found), "")


def test_a_cluster_that_is_away_completes_nothing(run: Any, cluster: FakeCluster, home: Path) -> None:
    cluster.failure = ConnectionError("away")
    assert run("__complete", "topic", "describe", "") == (0, "", "")


def test_completion_in_bash(tmp_path: Path) -> None:
    script = (
        'eval "$(barnabas completion bash)"; COMP_WORDS=(barnabas topic "cons"); COMP_CWORD=2; _barnabas; '
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=_with_command(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("consume\n", "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish: apt-get install fish")
def test_completion_in_fish(tmp_path: Path) -> None:
    script = (
        'barnabas completion fish | source; complete -C "barnabas topic cons"; complete -C "barnabas --timeout 3 gr"'
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], env=_with_command(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("consume\ngroup\n", "")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: apt-get install zsh")
def test_completion_in_zsh(tmp_path: Path) -> None:
    """At a terminal: its completion works nowhere else."""
    shell, terminal = pty.openpty()
    setup = 'PS1="> "; autoload -Uz compinit; compinit -u -d "$HOME/dump"; eval "$(barnabas completion zsh)"'
    with subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=_with_command(tmp_path),
        start_new_session=True,
    ) as process:
        os.close(terminal)
        try:
            os.write(shell, f"{setup}\necho re''ady\n".encode())
            _read_until(shell, b"ready")
            os.write(shell, b"barnabas topic cons\t")
            _read_until(shell, b"consume")
        finally:
            process.kill()
            os.close(shell)


def _with_command(folder: Path) -> dict[str, str]:
    program = folder / "barnabas"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m barnabas "$@"\n')
    program.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(folder), "TERM": "vt100"}


def _read_until(shell: int, wanted: bytes) -> None:
    seen = b""
    deadline_s = time.monotonic() + 60
    while wanted not in seen:
        ready, _, _ = select.select([shell], [], [], max(0.0, deadline_s - time.monotonic()))
        assert ready, f"no {wanted!r} in {seen!r}"
        seen += os.read(shell, 65_536)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_script_asks_the_command(run: Any, shell: str) -> None:
    code, out, _ = run("completion", shell)
    assert code == 0 and "barnabas __complete" in out


def test_the_nearest_topic_and_group(run: Any, cluster: FakeCluster) -> None:
    cluster.committed["workers"] = {TopicPartition("t", 0): 0}
    cluster.add("orders", b"x")
    assert "(did you mean orders?)" in run("topic", "consume", "ordres")[2]
    assert "(did you mean workers?)" in run("group", "describe", "worker")[2]
    assert "did you mean" not in run("topic", "consume", "zzz")[2]


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def shown(stream: io.StringIO) -> str:
        Output("text", stdout=stream).rows([{"a": 1}], ("a",))
        return stream.getvalue()

    assert shown(io.StringIO()) == "A\n1\n"
    assert shown(Terminal()) == "\x1b[1mA\x1b[0m\n1\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Terminal()) == "A\n1\n"
    said = Terminal()
    monkeypatch.setattr(sys, "stderr", said)
    assert main(["topic", "list", "--bootstrap", "h:x"]) == 2
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in said.getvalue()
    assert main(["topic", "list", "--bootstrap", "h:x"]) == 2
    assert said.getvalue().splitlines()[1].startswith("\x1b[31mbarnabas:\x1b[0m --bootstrap h:x")
