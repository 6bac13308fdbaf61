"""Layers, losses and initial weights. Layouts, names and default initialisation as PyTorch."""

from ..exports import exported
from . import functional, init
from .activations import ELU, GELU, LeakyReLU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from .layers import Dropout, Embedding, Flatten, Identity, Linear, Sequential
from .losses import bce_with_logits, cross_entropy, huber, kl_div, l1, mse, nll
from .module import Buffer, Module
from .norms import LayerNorm, RMSNorm

__all__ = exported(globals(), functional, init)
