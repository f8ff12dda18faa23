"""Words that every package may use: errors, partitions, values on the wire, patterns, what both sides of a group do alike."""
