"""What programs share that copy into topics, each record once: kept positions, and sessions that take over from each other."""
