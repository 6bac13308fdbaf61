"""The shapes of the 126 convolution weights of YOLO26n as matrices, on which its trainer runs Muon.

Source: the table of layers in ultralytics/cfg/models/26/yolo26.yaml (scale n: width 0.25, depth 0.5; 80 classes, end-to-end head,
reg_max 1) of github.com/ultralytics/ultralytics, and the convolutions of its blocks C3k2, SPPF, C2PSA and Detect. Pull request
25288 there counts 126 matrices among 366 parameters, and the model's summary 2,572,280 weights. `check` compares both.

A convolution of c inputs, n outputs and a k x k kernel in g groups is a matrix of shape (n, c / g * k * k).
"""

Shape = tuple[int, int]


def conv(inputs: int, outputs: int, kernel: int = 1, groups: int = 1) -> Shape:
    return outputs, inputs // groups * kernel * kernel


def pair(channels: int, hidden: int) -> list[Shape]:
    """Two 3 x 3 convolutions, one after the other."""
    return [conv(channels, hidden, 3), conv(hidden, channels, 3)]


def attention(c: int) -> list[Shape]:
    """Queries, keys and values, their projection, the positional encoding, and two layers that follow."""
    return [conv(c, 2 * c), conv(c, c), conv(c, c, 3, groups=c), conv(c, 2 * c), conv(2 * c, c)]


def c3k2(inputs: int, outputs: int, kind: str, share: float = 0.5) -> list[Shape]:
    c = int(outputs * share)
    inner = {
        "bottleneck": pair(c, c // 2),
        "c3k": [conv(c, c // 2), conv(c, c // 2), conv(c, c), *pair(c // 2, c // 2), *pair(c // 2, c // 2)],
        "attention": [*pair(c, c // 2), *attention(c)],
    }[kind]
    return [conv(inputs, 2 * c), conv(3 * c, outputs), *inner]


def detect(features: tuple[int, ...], classes: int) -> list[Shape]:
    box, label = max(16, features[0] // 4), max(features[0], min(classes, 100))
    found = []
    for c in features:
        found += [conv(c, box, 3), conv(box, box, 3), conv(box, 4)]
        found += [conv(c, c, 3, groups=c), conv(c, label), conv(label, label, 3, groups=label), conv(label, label)]
        found += [conv(label, classes)]
    return found


HEAD = detect((64, 128, 256), 80)
MATRICES: list[Shape] = [
    conv(3, 16, 3), conv(16, 32, 3), *c3k2(32, 64, "bottleneck", 0.25), conv(64, 64, 3), *c3k2(64, 128, "bottleneck", 0.25),
    conv(128, 128, 3), *c3k2(128, 128, "c3k"), conv(128, 256, 3), *c3k2(256, 256, "c3k"),
    conv(256, 128), conv(4 * 128, 256),  # SPPF
    conv(256, 256), conv(256, 256), *attention(128),  # C2PSA
    *c3k2(256 + 128, 128, "c3k"), *c3k2(128 + 128, 64, "c3k"), conv(64, 64, 3), *c3k2(64 + 128, 128, "c3k"),
    conv(128, 128, 3), *c3k2(128 + 256, 256, "attention"),
    *HEAD, *HEAD,  # one for training with many matches per object, and one with one match
]


def check() -> None:
    """Compares the list with the published numbers. Batch normalization has two weights per output of all but the last layers."""
    plain = 2 * 3 * (4 + 80)  # outputs of the last convolutions of the heads, which have biases
    weights = sum([rows * columns for rows, columns in MATRICES])
    outputs = sum([rows for rows, _ in MATRICES])
    assert len(MATRICES) == 126
    assert weights + 2 * (outputs - plain) + plain == 2_572_280


check()
