"""The composition root of a broker, and its process."""
