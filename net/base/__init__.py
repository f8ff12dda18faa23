"""Limits, the clock, slices of the loop and threads of folders: modules that do not depend on protocols."""
