"""The value types of a coordinator: messages, decisions, settings, and the log of rebalances."""
