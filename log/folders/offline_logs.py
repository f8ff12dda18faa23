"""The partitions whose logs cannot be used, because they or their folder have failed, or could not be opened."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from ..vocabulary.topic_partition import TopicPartition


class OfflineLogs(Mapping[TopicPartition, str]):
    """Each with the reason why it is offline."""

    def __init__(self, offline_folders: Collection[str]) -> None:
        self._offline_folders = offline_folders
        self._causes: dict[TopicPartition, str] = {}
        self._places: dict[TopicPartition, str | None] = {}  # the folder; None: an offline one, or none

    def __getitem__(self, topic_partition: TopicPartition) -> str:
        return self._causes[topic_partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._causes)

    def __len__(self) -> int:
        return len(self._causes)

    def note(self, causes: Mapping[TopicPartition, str], path: str | None) -> None:
        """`path`: the folder with their logs; None if it is not known which of the offline folders has them."""
        self._causes.update(causes)
        self._places.update(dict.fromkeys(causes, path))

    def note_twin(self, topic_partition: TopicPartition, cause: str) -> None:
        """A second log of a partition is not used. The first one is, so that no folder is to be brought back for it."""
        self._causes[topic_partition] = cause

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            self._causes.pop(topic_partition, None)
            self._places.pop(topic_partition, None)

    def has_place(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._places

    def folder_is_back(self, path: str) -> None:
        """Forget its offline partitions, and, once no folder is offline, those without a known folder."""
        for topic_partition, place in list(self._places.items()):
            if place == path or (place is None and not self._offline_folders):
                self.forget([topic_partition])

    def in_folder(self, path: str) -> list[TopicPartition]:
        """The offline partitions of a folder; while the folder itself is offline, also those that may be in it."""
        return [
            topic_partition
            for topic_partition, place in self._places.items()
            if place == path or (place is None and path in self._offline_folders)
        ]
