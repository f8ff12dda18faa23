"""What voters say to each other: messages as values, and snapshots in chunks. Pure; the bytes are in `net`."""
