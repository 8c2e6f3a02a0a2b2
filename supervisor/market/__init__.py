"""A market to develop against: candles and pools by HTTP, the same for the same seed, with faults on demand."""
