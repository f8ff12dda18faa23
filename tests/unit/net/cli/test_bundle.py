"""Secrets are taken out of a bundle, and it is bounded."""

import asyncio
import tarfile
from pathlib import Path
from typing import Any

import pytest

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.cli.bundle.archive import MAX_BYTES, MAX_PART_BYTES, Archive
from barnabas.net.cli.bundle.gathering import Gathering
from barnabas.net.cli.bundle.secrets import REMOVED, clean_text, without_secrets
from barnabas.net.wire.protocol.group_responses import ListedGroup


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
        {"text": "postgresql://user:p@S3CRET@host/db"},
        {"text": "postgresql://user:p/S3CRET@host/db"},
        {"text": "redis://:S3CRET@host"},
        {"text": "host=db user=me password='a S3CRET'"},
        {"text": "host=db password='it\\'s S3CRET'"},
        {"text": 'password="a S3CRET"'},
        {"text": 'told {\\"password\\": \\"S3CRET\\"}'},
        {"text": "PGPASSWORD=S3CRET"},
        {"text": "passwd=S3CRET"},
        {"text": "pwd: S3CRET"},
        {"text": "https://S3CRET@registry:8081/"},
        {"text": "mirror --password S3CRET --topics x"},
        {"text": "the registry refused Bearer S3CRET.S3CRET.S3CRET"},
        {"text": "Basic dXNlcjpTM0NSRVQS3CRET=="},
        {"text": "basic.auth.user.info=user:S3CRET"},
        {"text": "user_info='user:S3CRET'"},
        {"text": "passphrase=S3CRET"},
        {"secret": b"S3CRET"},
        {"text": "password='cut S3CRET"},
        {"whatever": b"S3CRET"},
        {"text": "-----BEGIN PRIVATE KEY-----\nS3CRET\n-----END PRIVATE KEY-----"},
    ],
)
def test_secrets_are_removed(told: Any) -> None:
    assert "S3CRET" not in str(without_secrets(told)) and REMOVED in str(without_secrets(told))


def test_what_is_no_secret_stays() -> None:
    told = {"key": "retention.ms", "value": "5", "topic": "tokens-of-users", "n": 7, "none": None, "host": "a:9092"}
    assert without_secrets(told) == told
    assert clean_text("http://host:9092/path of a@b") == "http://host:9092/path of a@b"
    assert clean_text("basic auth by --password-file x, see https://host/a@b") == (
        "basic auth by --password-file x, see https://host/a@b"
    )
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


def test_a_file_that_cannot_be_written_is_told_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidConfigError, match="cannot be written: Not a directory; name another file"):
        Archive().write(tmp_path / "file" / "b.tar.gz")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece", ["://a:", "password='", "token\\", "authorization: a ", "-----BEGIN A PRIVATE KEY-----"]
)
def test_texts_that_clients_choose_cost_little(piece: str) -> None:
    """Patterns without limits took minutes for a text of this size."""
    clean_text(piece * (MAX_PART_BYTES // 4 // len(piece)))


class SilentAdmin:
    """A cluster that lists many groups, and whose coordinators do not answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def describe_cluster(self) -> None:
        raise OSError("no broker")

    async def list_groups(self) -> list[ListedGroup]:
        return [ListedGroup(group_id=f"g{n}", state="", protocol="consumer", member_count=0) for n in range(100)]

    def __getattr__(self, name: str) -> Any:
        async def ask(*_: object, **__: object) -> None:
            self.asked += 1
            await asyncio.Event().wait()

        return ask


@pytest.mark.timeout(20)
async def test_silent_brokers_do_not_keep_answers_out_of_the_bundle() -> None:
    """100 groups with two questions each would take longer than the command may; what is known by then is written."""
    archive, admin = Archive(), SilentAdmin()
    ends_s = asyncio.get_running_loop().time() + 0.2
    await Gathering(admin, archive, ends_s=ends_s).all()  # type: ignore[arg-type]
    assert "brokers" in archive.omitted and "no time was left" in archive.omitted["group g99"]
    archive.add("unanswered.json", archive.omitted)
    assert admin.asked < 100
