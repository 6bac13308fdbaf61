"""Facts: what a recording read from the Python program, which has to be unchanged for the recording to be replayed."""
