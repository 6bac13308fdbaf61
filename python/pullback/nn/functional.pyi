# Written by tools/generate.py from functional.py.
# ruff: noqa

from ..ops.elementwise import leaky_relu as leaky_relu
from ..ops.elementwise import relu as relu
from ..ops.elementwise import sigmoid as sigmoid
from ..ops.elementwise import silu as silu
from ..ops.elementwise import tanh as tanh
from ..ops.gather import one_hot as one_hot
from ..ops.linear import linear as linear
from ..ops.random import dropout as dropout
from ..ops.rows import layer_norm as layer_norm
from ..ops.rows import log_softmax as log_softmax
from ..ops.rows import logsumexp as logsumexp
from ..ops.rows import rms_norm as rms_norm
from ..ops.rows import softmax as softmax
from .activations import elu as elu
from .activations import gelu as gelu
from .activations import softplus as softplus
from .losses import bce_with_logits as bce_with_logits
from .losses import cross_entropy as cross_entropy
from .losses import huber as huber
from .losses import kl_div as kl_div
from .losses import l1 as l1
from .losses import mse as mse
from .losses import nll as nll
