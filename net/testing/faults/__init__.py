"""Faults behind the ports of a broker under test: connections, disks, requests, clock. A production broker has none of this."""
