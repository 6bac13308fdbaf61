"""The forward and the backward pass of recurrent layers over sequences, in each library."""

# Maps each workload to the layer and (steps, batch, input_size, hidden_size).
SHAPES = {
    "GRU 64 -> 64, 64 steps, batch 32": ("GRU", (64, 32, 64, 64)),
    "LSTM 64 -> 64, 64 steps, batch 32": ("LSTM", (64, 32, 64, 64)),
    "RNN 64 -> 64, 64 steps, batch 32": ("RNN", (64, 32, 64, 64)),
    "LSTM 16 -> 32, 100 steps, batch 1": ("LSTM", (100, 1, 16, 32)),
    "LSTM 256 -> 512, 32 steps, batch 32": ("LSTM", (32, 32, 256, 512)),
}
