"""Without Java the first thing that a user hears is what installs it."""

from pathlib import Path

import pytest

from barnabas.spark_connector.java import JavaMissingError, require_java
from barnabas.spark_connector.session import local_session


def test_a_session_without_java_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match="apt-get install openjdk-17-jre-headless"):
        local_session()


def test_a_wrong_java_home_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match=f"JAVA_HOME is {tmp_path}"):
        require_java()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    assert require_java() == str(tmp_path / "bin" / "java")
