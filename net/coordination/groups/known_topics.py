"""The topics of the newest image, in the form in which the machines of slots need them."""

from collections.abc import Mapping

from barnabas.consumer_groups.subscriptions.subscriptions import TopicsView, topics_view
from barnabas.kraft.node.metadata_node import MetadataPublication


class KnownTopics:
    """`view` (topic -> number of partitions) and `ids` (topic -> its id) are of the same image."""

    def __init__(self) -> None:
        self.view: TopicsView = {}
        self.ids: Mapping[str, str] = {}
        self.change_count = 0  # images that changed topics

    def change(self, publication: MetadataPublication) -> frozenset[str]:
        """Take the topics of this image. Return those that were deleted and created again: their ids differ."""
        before, topics = self.ids, publication.image.topics
        self.ids = {topic.name: topic.topic_id for topic in topics.values()}
        self.view = topics_view(publication.image)
        self.change_count += 1
        return frozenset(
            name
            for name in publication.changes.topics
            if name in before and name in topics and before[name] != topics[name].topic_id
        )
