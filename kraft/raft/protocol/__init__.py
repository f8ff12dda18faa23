"""The protocol of the voters: messages as values, and snapshots in chunks. Pure; the bytes are in `net`."""
