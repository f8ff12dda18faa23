"""Requests and responses as values, and their codecs. Pure: bytes in, values out."""
