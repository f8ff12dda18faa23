"""Which log is cleaned, and one cleaning of it."""
