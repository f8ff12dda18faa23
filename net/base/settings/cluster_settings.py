"""Settings with one value for the whole cluster (kraft/metadata/cluster_settings): a broker's file against the cluster's value.

A broker takes these settings from the metadata only. If its own configuration has another value, the broker logs a warning when
it starts and when the cluster's value changes. It registers with the values of its file, so that every broker can show them.
"""

import logging
from collections.abc import Mapping

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.settings.table import BROKER_KEYS, CLUSTER_SETTINGS
from barnabas.log.vocabulary.errors import InvalidConfigError

from .config import BrokerConfig

logger = logging.getLogger("barnabas.config")


def file_settings(config: BrokerConfig) -> dict[str, str]:
    """The cluster settings in the broker's file, environment and flags; defaults are not listed."""
    given = {key: config.text(key) for key in CLUSTER_SETTINGS if key in config.sources}
    return {key: text for key, text in given.items() if text is not None}


def cluster_values(image: MetadataImage) -> dict[str, str]:
    """The values in effect; empty until a controller has written the first ones."""
    found = image.broker_configs.get(CLUSTER_DEFAULT, {})
    return {key: found[key] for key in CLUSTER_SETTINGS if key in found}


def differing(of_file: Mapping[str, str], of_cluster: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Settings whose value in the file differs from the cluster's: (value in the file, value of the cluster)."""
    return {
        key: (of_file[key], value)
        for key, value in of_cluster.items()
        if key in of_file and _read(key, of_file[key]) != _read(key, value)
    }


def _read(key: str, text: str) -> object:
    """Parse the value, so that `TRUE` and `true` are equal. A value that only a newer version accepts stays as it is."""
    try:
        return BROKER_KEYS[key].parse(text)
    except InvalidConfigError:
        return text


class ClusterSettingsReport:
    """Logs each setting whose value in this broker's file differs from the cluster's; once per value."""

    def __init__(self, config: BrokerConfig) -> None:
        self._node_id = config.node_id
        self._of_file = file_settings(config)
        self._told: dict[str, tuple[str, str]] = {}

    def published(self, publication: MetadataPublication) -> None:
        if CLUSTER_DEFAULT not in publication.changes.broker_configs:
            return
        found = differing(self._of_file, cluster_values(publication.image))
        for key, (of_file, of_cluster) in found.items():
            if self._told.get(key) != (of_file, of_cluster):
                logger.warning(
                    "node=%d: %s=%s in this broker's configuration has no effect: the cluster's value is %s. Remove it "
                    "from the file, or change the cluster's value: barnabas cluster alter -c %s=%s",
                    self._node_id,
                    key,
                    of_file,
                    of_cluster,
                    key,
                    of_file,
                )
        self._told = found
