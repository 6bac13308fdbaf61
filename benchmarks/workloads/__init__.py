"""The same workloads, written for each library: `WORKLOADS[name]()` sets one up and returns a function that runs it once."""
