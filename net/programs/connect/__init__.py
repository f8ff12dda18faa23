"""Connectors: programs that copy between topics and other systems. They stand on the SDK alone."""
