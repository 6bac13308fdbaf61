"""Programs that the command line runs. They use only the public API."""
