"""Declarations of ops, one family a file."""
