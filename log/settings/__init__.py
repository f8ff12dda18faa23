"""The configuration of a topic: its keys, defaults and ranges."""
