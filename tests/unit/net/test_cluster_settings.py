"""What a broker's own file says of settings with one value for the cluster: compared, told once, without effect."""

import logging

import pytest

from barnabas.kraft.metadata.image import MetadataChanges, MetadataImage
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.settings.table import check_broker_config, check_cluster_config
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.settings.cluster_settings import ClusterSettingsReport, differing, file_settings
from barnabas.net.base.settings.config import load
from barnabas.net.base.settings.dynamic_config import topic_defaults_in_force

FILE = {
    "node.id": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "TRUE",
    "log.segment.bytes": "4096",
}


def publication(**settings: str) -> MetadataPublication:
    values = {key.replace("_", "."): value for key, value in settings.items()}
    return MetadataPublication(
        image=MetadataImage(broker_configs={"": values}),
        changes=MetadataChanges(broker_configs=frozenset({""})),
        group_records=(),
        leader=Leadership(leader_id=None, term=0, is_self=False),
        is_active_controller=False,
    )


def test_only_what_a_file_sets_can_differ() -> None:
    of_file = file_settings(load(None, FILE, {}))
    assert of_file == {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}
    of_cluster = {"min.insync.replicas": "3", "unclean.leader.election.enable": "True", "num.partitions": "8"}
    assert differing(of_file, of_cluster) == {"min.insync.replicas": ("2", "3")}


def test_the_clusters_values_hold_for_topics_and_the_rest_of_the_file_too() -> None:
    found = topic_defaults_in_force(
        load(None, FILE, {}), own={}, cluster={"min.insync.replicas": "3", "log.flush.interval.messages": "1"}
    )
    assert found == {
        "min.insync.replicas": "3",
        "unclean.leader.election.enable": "true",
        "segment.bytes": "4096",
        "flush.messages": "1",
    }


def test_a_file_that_differs_is_reported_with_both_values_and_the_cure_once(caplog: pytest.LogCaptureFixture) -> None:
    report = ClusterSettingsReport(load(None, FILE, {}))
    with caplog.at_level(logging.WARNING, logger="barnabas.config"):
        report.published(publication(min_insync_replicas="1"))
        report.published(publication(min_insync_replicas="1"))
        report.published(publication(min_insync_replicas="2"))
    (told,) = [record.getMessage() for record in caplog.records]
    assert "min.insync.replicas=2" in told and "the cluster's value is 1" in told
    assert "barnabas cluster alter -c min.insync.replicas=2" in told


def test_one_broker_cannot_have_a_value_of_its_own() -> None:
    check_cluster_config("min.insync.replicas", "2")
    with pytest.raises(InvalidConfigError):
        check_cluster_config("min.insync.replicas", "none")
    with pytest.raises(InvalidConfigError, match="one value for the whole cluster"):
        check_broker_config("min.insync.replicas", "2")
