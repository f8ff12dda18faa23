"""The shell of log: loading, flushing, cleaning, scrubbing, failed folders; ISR proposals."""
