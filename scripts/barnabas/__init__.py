"""Barnabas: the Kafka you can import."""
