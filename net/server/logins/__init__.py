"""Logins of clients at a broker: the state of each, the users, the limits of failures."""
