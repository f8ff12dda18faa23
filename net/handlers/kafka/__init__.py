"""Handlers of Kafka's protocol."""
