"""What reading and writing share: options, columns, connections, the ledger of the sink."""
