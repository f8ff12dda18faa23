"""`barnabas collect`: lines of log files into a topic, each once, through rotation, truncation, restarts and kill -9."""
