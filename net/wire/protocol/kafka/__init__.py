"""Kafka's wire protocol: its message schemas as data, and a codec that is compiled from them."""
