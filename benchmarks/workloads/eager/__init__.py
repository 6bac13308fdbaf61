"""Plain training code in each library."""
