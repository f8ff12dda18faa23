"""Tables and queries of SQL databases as sources of rows: `relation.open_relation`."""
