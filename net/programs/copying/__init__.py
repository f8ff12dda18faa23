"""What programs share that copy: kept positions, sessions that take over from each other, and reports of themselves."""
