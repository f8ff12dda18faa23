"""Incoming connections: admission, frames, memory, dispatch, parked requests."""
