"""Outgoing connections: TCP, requests and answers, what waits to be written."""
