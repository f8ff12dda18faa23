"""Handlers of both protocols about who a client is and what it may do."""
