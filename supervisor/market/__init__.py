"""A market to develop against: candles and pools by HTTP, one seed is one market, faults on demand."""
