"""One file per API of the broker."""
