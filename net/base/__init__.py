"""Limits, the clock, slices of the loop and threads of folders: what knows nothing of protocols."""
