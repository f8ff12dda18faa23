"""Log sequence numbers: byte positions in PostgreSQL's write-ahead log, as integers, and as the server writes them."""

NO_LSN = 0  # no record of the log begins there; the server writes 0/0


def lsn_of(text: str) -> int:
    """`16/B374D848` as an integer. Raises ValueError."""
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} is no log sequence number: it has the form 16/B374D848")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
