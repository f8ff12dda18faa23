"""Records that are handled side by side, in the order of their partition or key, with retries and commits in order."""
