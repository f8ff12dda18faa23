"""What a broker says about its work and its machine: latencies, traffic, process figures, clients."""
