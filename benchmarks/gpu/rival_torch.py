"""PyTorch's side of the turns: the same training steps and single kernels. `python rival_torch.py` serves them (serving.py).

A captured step is one CUDA graph of the whole step, which is PyTorch's fastest way without a compiler; the variant "torch.compile"
first lets the compiler fuse the kernels of the loss and its gradient. Without a GPU only eager steps run, on the CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from serving import Prepared, Server
from singles import Single, singles

import device
from workloads import BATCHES, EAGER, LEARNING_RATE, SEVERAL, STEPS, Decoder, Net, Recurrent, layers_of, named

COMPILED = "torch.compile"
F, nn = torch.nn.functional, torch.nn
PLACE = "cuda" if torch.cuda.is_available() else "cpu"


def finish() -> None:
    if PLACE == "cuda":
        torch.cuda.synchronize()


@contextmanager
def precision_of(precision: str) -> Iterator[None]:
    """Sets the precision in which torch multiplies float32 tensors."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    yield


def rounding(precision: str) -> AbstractContextManager[Any]:
    """Returns the context manager that is entered around a forward pass."""
    return torch.autocast(PLACE, dtype=torch.bfloat16, cache_enabled=False) if precision == "bfloat16" else nullcontext()


# ---- training steps


class Reader(nn.Module):
    """Reads sequences with a GRU and classifies them by its last state."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.rows, self.classes = nn.GRU(inputs, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Any) -> Any:
        return self.classes(self.rows(x)[0][:, -1])


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.inside, self.outside = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.heads = heads

    def forward(self, x: Any) -> Any:
        q, k, v = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inside(self.norm1(x)).chunk(3, -1)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.outside(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Characters(nn.Module):
    """A GPT with attention in one kernel, whose logits are rows, one for each character."""

    # the names of weights that differ from pullback's
    NAMES = (("attention.in_proj_weight", "inside.weight"), ("attention.out_proj.weight", "outside.weight"))

    def __init__(self, net: Decoder) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(net.characters, net.width), nn.Embedding(net.context, net.width)
        self.blocks = nn.Sequential(*[Block(net.width, net.heads) for _ in range(net.layers)])
        self.norm = nn.LayerNorm(net.width, bias=False)

    def forward(self, numbers: Any) -> Any:
        x = self.characters(numbers) + self.positions.weight[: numbers.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.characters.weight).flatten(0, 1)


def model_of(net: Any) -> Any:
    """Returns the network of a Workload with its weights."""
    weights = {name: torch.from_numpy(value) for name, value in net.weights().items()}
    model: Any
    if isinstance(net, Recurrent):
        model = Reader(net.inputs, net.hidden)
    elif isinstance(net, Decoder):
        model = Characters(net)
        for ours, theirs in Characters.NAMES:
            weights = {name.replace(ours, theirs): value for name, value in weights.items()}
    else:
        model = nn.Sequential(*layers_of(net, nn))
    model.load_state_dict(weights)
    return model.to(PLACE)


def step_of(model: Any, precision: str, compiled: bool) -> Callable[[Any, Any], Any]:
    """Returns a training step of a batch and its labels."""
    on_gpu = PLACE == "cuda"
    opt = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=on_gpu, capturable=on_gpu)

    def forward(x: Any, y: Any) -> Any:
        with rounding(precision):
            return F.cross_entropy(model(x), y)

    loss_of = forward
    if compiled:
        # All networks share this function's code: without a reset dynamo would reach its limit of recompilations, and not compile.
        torch._dynamo.reset()
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        loss_of = torch.compile(forward, dynamic=False)

    def step(x: Any, y: Any) -> Any:
        opt.zero_grad(set_to_none=True)  # lets the backward pass write gradients instead of adding to them
        loss = loss_of(x, y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def captured(work: Callable[[], Any]) -> Callable[[], Any]:
    """Returns the replay of a CUDA graph of this work, recorded after a warm-up on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def runner(step: Callable[[Any, Any], Any], x: Any, y: Any, way: str) -> tuple[Callable[[], Any], int, list[Any]]:
    """Returns a function that runs the step this way with the next batch, the number of calls that see all batches, and a list that
    always holds the losses of the last call.

    A CUDA graph reads its batch from fixed memory, so each call copies the batch to this memory.
    """
    count, losses = STEPS if way == SEVERAL else 1, []
    given = [(x[k : k + count], y[k : k + count]) for k in range(0, len(x), count)]
    turn = itertools.cycle(given)

    def steps(x: Any, y: Any) -> None:
        losses[:] = [step(x[k], y[k]) for k in range(count)]

    if way == EAGER:
        return lambda: steps(*next(turn)), len(given), losses
    place = [part.clone() for part in given[0]]
    replay = captured(lambda: steps(*place))

    def call() -> None:
        for to, part in zip(place, next(turn)):
            to.copy_(part)
        replay()

    return call, len(given), losses


def prepare_step(case: Mapping[str, Any], simulated: bool) -> Prepared:
    net, precision, way = named(case["name"], simulated), case["precision"], case["way"]
    if PLACE == "cpu" and way != EAGER:
        raise RuntimeError("there is no GPU: a CUDA graph cannot be made")
    model = model_of(net)
    x, y = net.batches(BATCHES)
    x, y = torch.from_numpy(x).to(PLACE), torch.from_numpy(y.reshape(BATCHES, -1)).to(PLACE)
    within = partial(precision_of, precision)
    with within():
        with torch.no_grad(), rounding(precision):
            logits = model(x[0]).float()
            facts = {"loss_first": float(F.cross_entropy(logits, y[0]))}
        facts |= {"error": net.error(logits.cpu().numpy())} if isinstance(net, Net) else {}
        call, warm, losses = runner(step_of(model, precision, case.get("variant") == COMPILED), x, y, way)
    after = lambda: {"loss_after": sum(map(float, losses)) / len(losses)}
    return Prepared(call, finish, warm, STEPS if way == SEVERAL else 1, facts, after, within)


# ---- single kernels


def unary(f: Callable[[Any], Any]) -> Callable[[Single], Callable[[], Any]]:
    def make(single: Single) -> Callable[[], Any]:
        x = torch.randn(single.shape, device=PLACE)
        return lambda: f(x)

    return make


def add(single: Single) -> Callable[[], Any]:
    x, y = torch.randn(single.shape, device=PLACE), torch.randn(single.shape, device=PLACE)
    return lambda: x + y


def memcpy(single: Single) -> Callable[[], Any]:
    x, y = torch.randn(single.shape, device=PLACE), torch.empty(single.shape, device=PLACE)
    return lambda: y.copy_(x)


def layer_norm(single: Single) -> Callable[[], Any]:
    norm = nn.LayerNorm(single.shape[-1], device=PLACE).requires_grad_(False)
    return unary(norm)(single)


def product(single: Single) -> Callable[[], Any]:
    (side,) = single.shape
    dtype = torch.bfloat16 if single.precision == "bfloat16" else torch.float32
    a, b = [torch.randn((side, side), device=PLACE).to(dtype) for _ in range(2)]
    return lambda: a @ b


def adam(single: Single) -> Callable[[], Any]:
    count, each = single.shape
    parameters = [nn.Parameter(torch.zeros(each, device=PLACE)) for _ in range(count)]
    for p in parameters:
        p.grad = torch.randn(each, device=PLACE)
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True, capturable=PLACE == "cuda").step


def cross_entropy(single: Single) -> Callable[[], Any]:
    x = torch.randn(single.shape, device=PLACE, requires_grad=True)
    y = torch.randint(0, single.shape[1], (single.shape[0],), device=PLACE)
    return lambda: torch.autograd.grad(F.cross_entropy(x, y), x)


def layer_norm_gradient(single: Single) -> Callable[[], Any]:
    norm = nn.LayerNorm(single.shape[-1], device=PLACE).requires_grad_(False)
    x, g = torch.randn(single.shape, device=PLACE, requires_grad=True), torch.randn(single.shape, device=PLACE)
    return lambda: torch.autograd.grad(norm(x), x, g)


MAKE: dict[str, Callable[[Single], Callable[[], Any]]] = {
    "copy": unary(torch.clone), "memcpy": memcpy,
    "negative": unary(torch.neg), "exp": unary(torch.exp), "tanh": unary(torch.tanh), "gelu": unary(F.gelu),
    "scale": unary(lambda x: x * 1.5), "add": add, "product": product, "adam": adam,
    "softmax": unary(lambda x: F.softmax(x, -1)), "log_softmax": unary(lambda x: F.log_softmax(x, -1)),
    "layer_norm": layer_norm, "sum_rows": unary(lambda x: x.sum(-1)), "sum_columns": unary(lambda x: x.sum(0)),
    "cross_entropy": cross_entropy, "layer_norm_gradient": layer_norm_gradient,
}


def prepare_single(case: Mapping[str, Any], simulated: bool) -> Prepared:
    single = next(single for single in singles(simulated) if (single.name, single.precision) == (case["name"], case["precision"]))
    within = partial(precision_of, single.precision)
    with within():
        call, times = MAKE[single.kind](single), max(1, single.launches)
        if single.launches and PLACE == "cuda":

            def several(call: Callable[[], Any] = call) -> None:
                for _ in range(times):
                    call()

            call = captured(several)
        else:
            times = 1
    return Prepared(call, finish, steps=times, within=within)


def main() -> None:
    options = device.arguments(__doc__)
    torch.backends.cudnn.benchmark = True  # the warm-up finds the fastest convolutions, as JAX's compilation does
    if options.simulated:
        torch.set_num_threads(1)  # the simulated device is on the same processors
    prepare = lambda case: (prepare_step if case["way"] else prepare_single)(case, options.simulated)
    facts = {"version": torch.__version__, "on": PLACE, "cuda": torch.version.cuda}
    Server(prepare).run(**facts)


if __name__ == "__main__":
    main()
