"""The simulator's job world: the real job code (pools, capacity, reaper, job worker) on virtual time."""
