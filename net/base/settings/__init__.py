"""The settings of a broker: values, listeners, dynamic configurations."""
