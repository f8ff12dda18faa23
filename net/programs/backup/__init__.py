"""Backups: the metadata and the committed records of a cluster as files in a folder, and back into a cluster."""
