"""Outgoing connections: TCP, requests and responses, send queues."""
