"""Training steps of networks with convolutions and with recurrent layers, in each library: forward, backward and Adam."""

CNN, RESNET, GRU = "digits CNN, batch 64", "ResNet-8, batch 32", "digits GRU, batch 64"
SHAPES = {CNN: (64, 1, 8, 8), RESNET: (32, 3, 32, 32), GRU: (64, 8, 8)}  # of a batch


def layers_of_cnn(nn):
    """Returns the layers of the CNN in `nn`, pullback's or torch's: 9,354 parameters."""
    return [
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 2 * 2, 32), nn.ReLU(), nn.Linear(32, 10),
    ]  # fmt: skip
