"""The way to the kernels: the door that every launch passes, the ledger, and what a capture refuses (the twin of csrc/launch)."""
