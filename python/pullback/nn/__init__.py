"""Layers, losses and initial weights. Weight layouts, names and default initialization follow PyTorch."""

from ..exports import exported
from . import functional, init
from .activations import (
    CELU, ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSoftmax, Mish, PReLU, ReLU, ReLU6, SELU,
    Sigmoid, SiLU, Softmax, Softplus, Softshrink, Softsign, Tanh, Tanhshrink, Threshold,
)
from .attention_layers import MultiHeadAttention, MultiheadAttention
from .convolutions import Conv1d, Conv2d, ConvTranspose2d
from .bilinear import Bilinear
from .calls import functional_call, stack
from .channel_norms import BatchNorm1d, BatchNorm2d, GroupNorm, InstanceNorm2d
from .distances import CosineSimilarity, PairwiseDistance
from .layers import Dropout, Embedding, Flatten, Identity, Linear, Sequential
from .losses import bce_with_logits, binary_cross_entropy, cross_entropy, huber, kl_div, l1, mse, nll, smooth_l1
from .buffer import Buffer
from .module import Module
from .norms import LayerNorm, RMSNorm
from .linear_recurrent import LRU, MinGRU
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .pools import AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d

__all__ = exported(globals(), functional, init)
