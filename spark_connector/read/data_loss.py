"""`DataLossError`: records that a query was to read are gone. What failOnDataLoss decides about. Pure."""

CURE = (
    'They were deleted by retention, or the topic was deleted or made anew. To go on without them, set .option("failOnDataLoss", '
    '"false"); to keep them next time, give the topic more retention or run the query more often.'
)


class DataLossError(Exception):
    """The message says which records, why, and what to do."""

    def __init__(self, lost: str) -> None:
        super().__init__(f"{lost}. {CURE}")
