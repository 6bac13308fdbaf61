"""Two networks of MLPerf Tiny, a benchmark of inference on microcontrollers: ResNet-8 for images, DS-CNN for spoken keywords.

The benchmark is described in Banbury et al., "MLPerf Tiny Benchmark" (2021), arXiv:2106.07597. Its reference models are Keras code
and trained weights in https://github.com/mlcommons/tiny (folder benchmark/training). The networks below have the layers and the
numbers of the trained models:

|                                                                     | ResNet-8    | DS-CNN      |
|---------------------------------------------------------------------|-------------|-------------|
| one example                                                         | 3 x 32 x 32 | 1 x 49 x 10 |
| classes                                                             | 10          | 12          |
| parameters as Keras counts them, with running means and variances   | 78,666      | 24,908      |
| trained parameters: weights, biases, scales and shifts of the norms | 78,186      | 23,756      |
| multiply-adds of the convolutions and the linear layer              | 12,501,632  | 2,656,768   |

The multiply-adds are those of one example, without biases, norms and pools. Taps of a kernel that lie in the padding count, here as
in the published numbers. The FLOPs of a profile are two for each of them.

Two other numbers are in print. The paper says that the DS-CNN has 38.6 thousand parameters, but the released model has those of the
table. And the repository's present code for ResNet-8 has 26 filters in its first layers by default, while the paper's model, whose
weights are there, has 16.

Three things differ from Keras. The outputs are logits, because `nn.cross_entropy` contains the softmax. The axes of an image are
(channels, height, width). The initial weights are those of PyTorch's layers. (To train as the reference does, add 1e-4 times the
squares of the convolutions' weights to the loss.)
"""

from __future__ import annotations

import pullback as pb
from pullback import nn


def resnet8() -> nn.Module:
    """Returns the classifier of CIFAR-10: maps images (batch, 3, 32, 32) to logits (batch, 10)."""
    return nn.Sequential(
        SameConv2d(3, 16, 3), batch_norm(16), nn.ReLU(),
        Residual(16, 16),
        Residual(16, 32, stride=2),
        Residual(32, 64, stride=2),
        nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10),
    )


class Residual(nn.Module):
    """Adds two convolutions of x to x itself. If the shape changes, a convolution with a 1 x 1 kernel fits x to the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        self.branch = nn.Sequential(
            SameConv2d(inputs, outputs, 3, stride), batch_norm(outputs), nn.ReLU(),
            SameConv2d(outputs, outputs, 3), batch_norm(outputs),
        )
        same_shape = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same_shape else SameConv2d(inputs, outputs, 1, stride)

    def forward(self, x: pb.typing.ArrayLike) -> pb.Tensor:
        return nn.functional.relu(self.branch(x) + self.shortcut(x))


def ds_cnn() -> nn.Module:
    """Returns the classifier of Speech Commands: maps spectra (batch, 1, 49 frames, 10 coefficients) to logits (batch, 12).

    The pool has 24 of the 25 rows that reach it, as in the reference: 49 // 2 frames.
    """
    return nn.Sequential(
        SameConv2d(1, 64, (10, 4), stride=2), batch_norm(64), nn.ReLU(), nn.Dropout(0.2),
        separable(64), separable(64), separable(64), separable(64), nn.Dropout(0.4),
        nn.AvgPool2d((24, 5)), nn.Flatten(), nn.Linear(64, 12),
    )


def separable(channels: int) -> nn.Module:
    """Returns a depthwise separable convolution: a 3 x 3 kernel for each channel alone, then a product across the channels."""
    return nn.Sequential(
        SameConv2d(channels, channels, 3, groups=channels), batch_norm(channels), nn.ReLU(),
        SameConv2d(channels, channels, 1), batch_norm(channels), nn.ReLU(),
    )


def batch_norm(channels: int) -> nn.Module:
    """Returns a batch norm with Keras' defaults: its momentum of 0.99 is PyTorch's 0.01."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: the result has ceil(length / stride) rows and columns.

    If the number of zeros that this takes is odd, there is one more below than above, and one more on the right than on the left.
    """

    def forward(self, x: pb.typing.ArrayLike) -> pb.Tensor:
        x = pb.asarray(x)
        before, after = [], []
        for length, kernel, stride, dilation in zip(x.shape[-2:], self.kernel_size, self.stride, self.dilation):
            results = -(-length // stride)
            zeros = max(0, (results - 1) * stride + dilation * (kernel - 1) + 1 - length)
            before.append(zeros // 2)
            after.append(zeros - zeros // 2)
        if before != after:
            x, before = pb.pad(x, [(0, 0)] * (x.ndim - 2) + list(zip(before, after))), [0, 0]
        return nn.functional.conv2d(x, self.weight, self.bias, self.stride, before, self.dilation, self.groups)
