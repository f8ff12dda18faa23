"""Secrets are taken out of a bundle, and it is bounded."""

import tarfile
from pathlib import Path
from typing import Any

import pytest

from barnabas.net.cli.bundle.archive import MAX_BYTES, MAX_PART_BYTES, Archive
from barnabas.net.cli.bundle.secrets import REMOVED, clean_text, without_secrets


@pytest.mark.parametrize(
    "told",
    [
        {"key": "ssl.key.password", "value": "S3CRET"},
        {"key": "sasl.jaas.config", "value": "x S3CRET", "default": None},
        {"key": "listener.name.x.oauth.client.secret", "value": "S3CRET", "of_file": "S3CRET"},
        {"password": "S3CRET"},
        {"deep": [{"api_key": "S3CRET"}]},
        {"passwords": ["S3CRET"]},
        {"key": "registry.url", "value": "http://user:S3CRET@host/path"},
        {"text": "failed with password=S3CRET; retry"},
        {"text": 'token: "S3CRET"'},
        {"text": "Authorization: Basic S3CRET"},
        {"text": "-----BEGIN PRIVATE KEY-----\nS3CRET\n-----END PRIVATE KEY-----"},
    ],
)
def test_secrets_are_removed(told: Any) -> None:
    assert "S3CRET" not in str(without_secrets(told)) and REMOVED in str(without_secrets(told))


def test_what_is_no_secret_stays() -> None:
    told = {"key": "retention.ms", "value": "5", "topic": "tokens-of-users", "n": 7, "none": None, "host": "a:9092"}
    assert without_secrets(told) == told
    assert clean_text("http://host:9092/path of a@b") == "http://host:9092/path of a@b"
    assert without_secrets({"authorizer.class.name": "acl"}) == {"authorizer.class.name": "acl"}


def test_parts_and_the_whole_are_bounded(tmp_path: Path) -> None:
    archive = Archive()
    for number in range(MAX_BYTES // MAX_PART_BYTES + 2):
        archive.add_text(f"{number:02}.txt", "x" * (MAX_PART_BYTES + 10))
    assert len(archive.omitted) >= 2 and all("limit" in why for why in archive.omitted.values())
    archive.write(tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert sum(item.size for item in tar) <= MAX_BYTES
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar.gz"]
