"""Figures of this process and its requests: counters, histograms, samples. They know nothing of how they are shown."""
