"""SASL: the mechanisms of both sides as state machines: bytes in, bytes out. No I/O, no loop, no clock."""
