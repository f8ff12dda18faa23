"""Sockets and the process: protocol, server, broker, command line, admin API, client SDK."""
