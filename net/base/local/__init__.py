"""Clusters on this machine: their brokers' files, ports, secrets and certificates."""
