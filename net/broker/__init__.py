"""The composition root and the process of a broker."""
