"""What has happened: changes of the committed metadata, logins, refusals, rebalances; lines of the log, and bounded rings that
`barnabas cluster events` shows."""

__all__: list[str] = []
