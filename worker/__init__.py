"""The process that acts for one user. Imports nothing it does not need while it waits."""
