"""PyTorch's times for the same workloads: `python rival_torch.py steps`, `singles` or `compiled`.

The whole training step is one CUDA graph, which is PyTorch's fastest way without a compiler. `compiled` first lets torch.compile
fuse the kernels of the loss and its gradient. Without a GPU only the eager steps run, on the CPU.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import timing
import torch

import device
from workloads import PRECISIONS, STEPS, WAYS, Decoder, Net, Single, decoders, nets, singles

SIDE, COMPILED = "torch", "torch.compile"
F = torch.nn.functional
PLACE = "cuda" if torch.cuda.is_available() else "cpu"


def finish() -> None:
    if PLACE == "cuda":
        torch.cuda.synchronize()


def set_precision(precision: str) -> None:
    """Sets the precision in which torch multiplies float32 tensors."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def rounding(precision: str) -> AbstractContextManager[Any]:
    """Returns the context manager that is entered around a forward pass."""
    return torch.autocast(PLACE, dtype=torch.bfloat16, cache_enabled=False) if precision == "bfloat16" else nullcontext()


def network(net: Net, precision: str, compiled: bool = False) -> tuple[Any, Callable[[], Any]]:
    """Returns the model, and a training step on a batch whose memory does not move."""
    set_precision(precision)
    layers: list[Any] = []
    for place, (m, n) in enumerate(zip(net.sizes, net.sizes[1:])):
        layers += ([torch.nn.ReLU()] if place else []) + [torch.nn.Linear(m, n)]
    model = torch.nn.Sequential(*layers).to(PLACE)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in net.weights().items()})
    on_gpu = PLACE == "cuda"
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=on_gpu, capturable=on_gpu)
    x, y = [torch.from_numpy(array).to(PLACE) for array in net.examples()]

    def forward() -> Any:
        with rounding(precision):
            return F.cross_entropy(model(x), y)

    return model, _step(opt, torch.compile(forward) if compiled else forward)


def _step(opt: Any, loss_of: Callable[[], Any]) -> Callable[[], Any]:
    def step() -> Any:
        opt.zero_grad(set_to_none=True)  # lets the backward pass write gradients instead of adding to them
        loss = loss_of()
        loss.backward()
        opt.step()
        return loss

    return step


class CharacterModel(torch.nn.Module):
    """A decoder of torch's own layers, with attention in one kernel."""

    def __init__(self, net: Decoder) -> None:
        super().__init__()
        self.characters = torch.nn.Embedding(net.characters, net.width)
        self.positions = torch.nn.Embedding(net.context, net.width)
        block = {"dim_feedforward": 4 * net.width, "dropout": 0.0, "activation": "gelu", "norm_first": True, "batch_first": True}
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(net.width, net.heads, bias=False, **block) for _ in range(net.layers)
        )
        self.norm = torch.nn.LayerNorm(net.width, bias=False)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(net.context))

    def forward(self, numbers: Any) -> Any:
        x = self.characters(numbers) + self.positions.weight[: numbers.shape[1]]
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return F.linear(self.norm(x), self.characters.weight)


def decoder(net: Decoder, precision: str, compiled: bool = False) -> tuple[Any, Callable[[], Any]]:
    """Returns a character model, and a training step on a batch whose memory does not move."""
    set_precision(precision)
    model, on_gpu = CharacterModel(net).to(PLACE), PLACE == "cuda"
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=on_gpu, capturable=on_gpu)
    x, y = [torch.from_numpy(array).to(PLACE) for array in net.examples()]

    def forward() -> Any:
        with rounding(precision):
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return model, _step(opt, torch.compile(forward) if compiled else forward)


def captured(step: Callable[[], Any], count: int) -> Callable[[], Any]:
    """Returns the replay of a CUDA graph of `count` steps, recorded after a warm-up on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            step()
    return graph.replay


def error_of(net: Net, precision: str, model: Any) -> float:
    with torch.no_grad(), rounding(precision):
        return net.error(model(torch.from_numpy(net.examples()[0]).to(PLACE)).float().cpu().numpy())


def time_step(net: Net | Decoder, precision: str, way: str, effort: timing.Effort) -> dict[str, Any]:
    if PLACE == "cpu" and way != "eager":
        return {"failed": "there is no GPU: a CUDA graph cannot be made"}
    begin = time.perf_counter()
    model, step = (network if isinstance(net, Net) else decoder)(net, precision, way == COMPILED)
    error = error_of(net, precision, model) if isinstance(net, Net) else None
    steps = STEPS if way == WAYS[2] else 1
    call = step if way == "eager" else captured(step, steps)
    call()
    finish()
    first = round(time.perf_counter() - begin, 2)
    figures = timing.measure(call, finish, effort, steps)
    return {**figures, "error": error, "first_call_s": first, "loss_after": float(step().detach())}


def put(group: str, row: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
    """Prints what was measured, or a row with the error if the measurement failed."""
    try:
        found = measure()
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"[:1500], "traceback": traceback.format_exc()[-1500:]}
    device.put(side=SIDE, group=group, on=PLACE, **row, **found)
    if PLACE == "cuda":
        torch.cuda.empty_cache()


def steps(simulated: bool, ways: tuple[str, ...]) -> None:
    """Times the steps in all precisions. Captured steps come first, because pullback is compared with these."""
    effort = timing.DRY if simulated else timing.FULL
    for way in sorted(ways, key=lambda way: way == "eager"):
        for precision in PRECISIONS:
            for net in [*nets(simulated), *decoders(simulated)]:
                row = {"name": net.name, "precision": precision, "way": way, "does": PRECISIONS[precision][SIDE]}
                measure = lambda net=net, precision=precision, way=way: time_step(net, precision, way, effort)
                put("steps", row, measure)


# ---- single kernels


def unary(f: Callable[[Any], Any]) -> Callable[[Single], Callable[[], Any]]:
    def make(single: Single) -> Callable[[], Any]:
        x = torch.randn(single.shape, device=PLACE)
        return lambda: f(x)

    return make


def add(single: Single) -> Callable[[], Any]:
    x, y = torch.randn(single.shape, device=PLACE), torch.randn(single.shape, device=PLACE)
    return lambda: x + y


def layer_norm(single: Single) -> Callable[[], Any]:
    norm = torch.nn.LayerNorm(single.shape[-1], device=PLACE).requires_grad_(False)
    return unary(norm)(single)


def product(single: Single) -> Callable[[], Any]:
    set_precision(single.precision)
    (side,) = single.shape
    dtype = torch.bfloat16 if single.precision == "bfloat16" else torch.float32
    a, b = [torch.randn((side, side), device=PLACE).to(dtype) for _ in range(2)]
    return lambda: a @ b


def adam(single: Single) -> Callable[[], Any]:
    count, each = single.shape
    parameters = [torch.nn.Parameter(torch.zeros(each, device=PLACE)) for _ in range(count)]
    for p in parameters:
        p.grad = torch.randn(each, device=PLACE)
    return torch.optim.Adam(parameters, lr=1e-3, fused=True).step


def cross_entropy(single: Single) -> Callable[[], Any]:
    x = torch.randn(single.shape, device=PLACE, requires_grad=True)
    y = torch.randint(0, single.shape[1], (single.shape[0],), device=PLACE)
    return lambda: torch.autograd.grad(F.cross_entropy(x, y), x)


def layer_norm_gradient(single: Single) -> Callable[[], Any]:
    norm = torch.nn.LayerNorm(single.shape[-1], device=PLACE)
    x, g = torch.randn(single.shape, device=PLACE, requires_grad=True), torch.randn(single.shape, device=PLACE)
    return lambda: torch.autograd.grad(norm(x), x, g)


MAKE: dict[str, Callable[[Single], Callable[[], Any]]] = {
    "negative": unary(torch.neg), "exp": unary(torch.exp), "tanh": unary(torch.tanh), "gelu": unary(F.gelu),
    "scale": unary(lambda x: x * 1.5), "add": add, "product": product, "adam": adam,
    "softmax": unary(lambda x: F.softmax(x, -1)), "log_softmax": unary(lambda x: F.log_softmax(x, -1)),
    "layer_norm": layer_norm, "sum_rows": unary(lambda x: x.sum(-1)), "sum_columns": unary(lambda x: x.sum(0)),
    "cross_entropy": cross_entropy, "layer_norm_gradient": layer_norm_gradient,
}  # fmt: skip


def time_single(single: Single, effort: timing.Effort) -> dict[str, Any]:
    found = timing.measure(MAKE[single.kind](single), finish, effort)
    return {**found, **single.figures(found["us"]["median"])}


def main() -> None:
    options = device.arguments(__doc__, "what")
    device.put(side=SIDE, name="version", version=torch.__version__, on=PLACE)
    if options.what == "steps":
        steps(options.simulated, WAYS)
    elif options.what == "compiled":
        steps(options.simulated, (COMPILED,))
    elif options.what == "singles":
        for single in singles(options.simulated):
            row = {"name": single.name, "precision": single.precision}
            effort = timing.DRY if options.simulated else timing.FULL
            put(single.group, row, lambda single=single, effort=effort: time_single(single, effort))
    else:
        raise SystemExit(f"{options.what!r} is not one of steps, singles, compiled")


if __name__ == "__main__":
    main()
