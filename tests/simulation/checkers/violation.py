"""What every checker raises."""


class Violation(AssertionError):
    """A promise was broken."""
