"""What the connectors of PostgreSQL decide: messages, values, envelopes, positions, statements. Pure: no I/O, no clock."""
