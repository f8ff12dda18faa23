import pytest

from barnabas.log.checkpoints import checkpoint
from barnabas.log.checkpoints.leader_epoch_cache import EpochStart
from barnabas.log.disk.files import RealFiles
from barnabas.log.vocabulary.topic_partition import TopicPartition

FILES = RealFiles()


def test_offsets_in_kafkas_format(tmp_path):
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    offsets = {TopicPartition("b", 1): 5, TopicPartition("a", 0): 7}
    checkpoint.write_offsets(FILES, path, offsets)
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n2\na 0 7\nb 1 5\n"
    assert checkpoint.read_offsets(FILES, path) == offsets
    checkpoint.write_offsets(FILES, path, {})
    assert checkpoint.read_offsets(FILES, path) == {}
    assert checkpoint.read_offsets(FILES, str(tmp_path / "missing")) == {}


def test_epochs(tmp_path):
    path = str(tmp_path / "leader-epoch-checkpoint")
    entries = [EpochStart(1, 0), EpochStart(5, 9)]
    checkpoint.write_epochs(FILES, path, entries)
    assert checkpoint.read_epochs(FILES, path) == entries


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1\n0\n",
        "0\n2\na 0 7\n",
        "0\n1\na 0\n",
        "0\n1\na 0 x\n",
        "0\n1\na 0 -1\n",
        "0\n1\na 0 7",
        "\0\0\0\0",
        "\xff",
    ],
)
def test_damaged(tmp_path, text):
    file = tmp_path / "checkpoint"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(checkpoint.DamagedCheckpointError, match="is damaged"):
        checkpoint.read_offsets(FILES, str(file))


@pytest.mark.parametrize("text", ["0\n2\n2 5\n1 6\n", "0\n2\n1 5\n2 5\n", "0\n1\n1\n"])
def test_damaged_epochs(tmp_path, text):
    file = tmp_path / "checkpoint"
    file.write_text(text)
    with pytest.raises(checkpoint.DamagedCheckpointError):
        checkpoint.read_epochs(FILES, str(file))


def test_properties(tmp_path):
    path = str(tmp_path / "meta.properties")
    checkpoint.write_properties(FILES, path, {"a.b": "1", "c": "x=y"})
    assert checkpoint.read_properties(FILES, path) == {"a.b": "1", "c": "x=y"}
    (tmp_path / "meta.properties").write_text("# a comment = none\n\n  \na.b=1\n")
    assert checkpoint.read_properties(FILES, path) == {"a.b": "1"}
    (tmp_path / "meta.properties").write_text("# comment\n\nnonsense\n")
    with pytest.raises(checkpoint.DamagedCheckpointError):
        checkpoint.read_properties(FILES, path)
