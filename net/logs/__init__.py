"""The shell of log: loading, flushing, cleaning, scrubbing, failed folders; replica fetchers, ISR proposals, throttles."""
