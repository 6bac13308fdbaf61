"""Programs that the command line runs, and networks to read and to measure. They use only the public API."""
