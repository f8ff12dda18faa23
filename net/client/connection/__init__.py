"""Connections of a client, its metadata, its errors, its records."""
