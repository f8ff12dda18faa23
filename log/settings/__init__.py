"""The table of configuration keys of topics and brokers: names, kinds, ranges, defaults, and what changes at run time."""
