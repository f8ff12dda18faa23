"""Words about share groups (KIP-932): errors, and messages between brokers."""
