"""All logs of a broker in its data folders."""
