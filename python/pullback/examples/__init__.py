"""Programs in the public API that the command line runs."""
