"""The shell of log: loading, flushing, cleaning, scrubbing, failing folders; fetching followers, ISR proposals, throttles."""
