"""What a voter keeps on disk: journal, snapshots, term and vote."""
