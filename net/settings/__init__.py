"""The settings of a broker: keys, values, listeners, what changes at run time."""
