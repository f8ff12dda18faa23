"""Transactions of producers: the states of a transactional id, and the decisions about them."""
