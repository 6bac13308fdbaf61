"""Launching kernels: the door that every launch passes, the ledger, and the refusals of a capture (see also csrc/launch)."""
