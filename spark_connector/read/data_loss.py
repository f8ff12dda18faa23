"""`DataLossError`: records that a query should read are gone. The option failOnDataLoss decides whether it is raised. Pure."""

WHY = "They were deleted by retention, or the topic was deleted or recreated."
AVOID = "to avoid this, increase the topic's retention or run the query more often."
CURE = f'{WHY} To continue without them, set .option("failOnDataLoss", "false"); {AVOID}'


class DataLossError(Exception):
    """The message says which records are lost, why, and what to do."""

    def __init__(self, lost: str) -> None:
        super().__init__(f"{lost}. {CURE}")
