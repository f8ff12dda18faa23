"""Incoming connections: admission, frames, memory, dispatch, requests that wait."""
