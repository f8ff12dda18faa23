"""`barnabas.testing`: clusters inside tests, how they are broken, and what they hold."""
