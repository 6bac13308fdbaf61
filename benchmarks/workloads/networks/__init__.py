"""Workloads of networks with convolutions, with recurrent layers and with attention, in each library.

Each is a training step (forward, backward and the optimizer's step), except those of a single batch norm and of attention alone,
which have no step.
"""

CNN, DIGITS = "CNN 1-16-32 (5 x 5), 28 x 28, batch 64, Adam", "digits CNN, batch 64, Adam"
RESNET, GRU = "ResNet-8, 32 x 32, batch 32, SGD", "digits GRU, batch 64, Adam"
GPT = "GPT, 2 layers of width 64, 64 characters, batch 16, AdamW"
NORM = "BatchNorm2d, 64 x 64 x 32 x 32, no step"
ATTENTION = "attention, 8 x 4 heads x 256 x 32, no step"
CAUSAL = "causal attention, 8 x 4 heads x 256 x 32, no step"
SHAPES = {
    CNN: (64, 1, 28, 28),
    DIGITS: (64, 1, 8, 8),
    RESNET: (32, 3, 32, 32),
    GRU: (64, 8, 8),
    GPT: (16, 65),
    NORM: (64, 64, 32, 32),
    ATTENTION: (8, 4, 256, 32),
    CAUSAL: (8, 4, 256, 32),
}  # of a batch
CHARACTERS, LAYERS, WIDTH, HEADS = 65, 2, 64, 4  # of the GPT


def layers_of_cnn(nn):
    """Returns the layers of the CNN for images of 28 x 28 in `nn`, pullback's or torch's: 28,938 parameters."""
    return [
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    ]


def layers_of_digits(nn):
    """Returns the layers of the CNN for digits of 8 x 8 in `nn`, pullback's or torch's: 9,354 parameters."""
    return [
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 2 * 2, 32), nn.ReLU(), nn.Linear(32, 10),
    ]


def reader(nn):
    """Returns a network of `nn`, pullback's or torch's, that reads an image row by row, and classifies it by its last state."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.classes = nn.GRU(8, 64, batch_first=True), nn.Linear(64, 10)

        def forward(self, x):
            return self.classes(self.rows(x)[0][:, -1])

    return Reader()
