"""`DataLossError`: records that a query should read are gone. The option failOnDataLoss decides whether it is raised. Pure."""

CURE = (
    "They were deleted by retention, or the topic was deleted or recreated. To continue without them, set .option("
    '"failOnDataLoss", "false"); to avoid this, increase the topic\'s retention or run the query more often.'
)


class DataLossError(Exception):
    """The message says which records are lost, why, and what to do."""

    def __init__(self, lost: str) -> None:
        super().__init__(f"{lost}. {CURE}")
