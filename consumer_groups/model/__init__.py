"""The words of a coordinator: messages, decisions, settings, and what a rebalance did."""
