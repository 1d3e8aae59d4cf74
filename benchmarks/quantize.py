"""How long quantizing with GPFQ takes, and how close it comes, beside what else one could use.

    python benchmarks/quantize.py [--network] [--store] [--rounds 3]

The peer is Brevitas; without it the rest is measured. Install it beside tamis, without touching torch:

    pip install --no-deps brevitas==0.13.4 dependencies==2.0.1 unfoldNd

One layer, N inputs and n outputs, with m samples. Y is what the layer sees in the network, Ỹ what it sees once the
layers before it are quantized. Every method quantizes the same weights to the same levels, a step apart and as many
above zero as below, one step for the whole layer; its error is ‖Yw − Ỹq‖/‖Yw‖. Beside the seconds of each method stand
those of

- the definition, a loop over the inputs in which the error so far, u of size m×n, is updated by one input at a time:
  6·m·N·n operations, all of them waiting for memory;
- the bare Gram products, ỸᵀỸ and ỸᵀY, 4·m·N² operations and nothing else. A method that goes through the samples once
  and keeps none of them needs these sums, though no more than their lower triangles.

Brevitas is called as its documentation does: the layer is a QuantLinear in an eval model, `gpfq_mode` is entered, the
model called on all samples in one batch, `update` called. Its time includes this and reading the quantized weights at
the end, but not building the QuantLinear. Its step is a constant, so that it need not be found again from the weights
at each call. Its GPTQ, called in the same way, sees Ỹ alone.

--network adds a whole ResNet-20 and 5,000 images of CIFAR-10. Its floor is two forward passes over the images, of the
network and of the quantized one, and the bare Gram products of every layer, whose samples are the patches under the
kernel; cutting the patches out is stated beside it. Memory is the peak of the process above what it held before the
call.

Seconds are those of one thread's CPU time, the best of rounds in which the methods take turns.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import best_cpu_seconds, peak_memory, store
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import tamis
from tamis.quantization.feedback import Grid
from tamis.quantization.gpfq import gpfq_of_rows
from tamis.training import load_data
from tamis.training.models import resnet20

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Brevitas warns about its own modules
        from brevitas import nn as brevitas_nn
        from brevitas.graph.gpfq import gpfq_mode
        from brevitas.graph.gptq import gptq_mode
        from brevitas.inject.enum import ScalingImplType
        from brevitas.quant import Int8WeightPerTensorFloat
    BREVITAS = metadata.version("brevitas")
except ImportError:
    BREVITAS = None

LAYERS = {"512 → 512, 4,096 samples": (512, 512, 4096), "2,304 → 256, 8,192 samples": (2304, 256, 8192)}
FACTORS, DRIFT = 64, 0.03
PRETRAINED = Path(__file__).parents[1].parent / "shared" / "models" / "resnet20_cifar10.safetensors"
IMAGES, BATCH, LEVELS = 5000, 50, 3
MEMORY_IMAGES = (1250, 2500, 5000)
GPFQ, GPTQ, OURS = "Brevitas, GPFQ", "Brevitas, GPTQ", "tamis, GPFQ"
LOOP, GRAM = "loop of updates", "bare Gram products"


class Inputs(NamedTuple):
    """What a layer sees, m×N: Y in the network, Ỹ in the quantized one."""

    original: Tensor
    drifted: Tensor


class Alphabet(NamedTuple):
    """The levels −k·step, …, 0, …, k·step: 2^bits − 1 of them."""

    bits: int
    step: float

    @property
    def levels(self) -> int:
        return 2**self.bits - 1

    def nearest(self, values: Tensor) -> Tensor:
        k = self.levels // 2
        return (values / self.step).round_().clamp_(-k, k).mul_(self.step)


# For standard normal weights, the steps whose mean squared error is close to the least.
TERNARY, FINE = Alphabet(2, 1.224), Alphabet(4, 0.35)


# -- tamis -------------------------------------------------------------------------------------------------------------


def tamis_layer(weight: Tensor, inputs: Inputs, alphabet: Alphabet) -> Tensor:
    """The quantized weights n×N of one layer, by GPFQ."""
    steps, k = torch.full((1, len(weight)), alphabet.step), alphabet.levels // 2
    grid = Grid(steps, torch.arange(-k, k + 1.0))
    indices = gpfq_of_rows(weight[None].double(), inputs.original[None], inputs.drifted[None], grid)
    return Grid(steps[:, :, None], grid.levels).values(indices)[0].float()


def tamis_network(net: tamis.Network, images: Tensor) -> Any:
    """The whole network, by GPFQ with LEVELS levels."""
    return tamis.quantize(net, images, levels=LEVELS, method="gpfq", progress=False)


# -- one layer ---------------------------------------------------------------------------------------------------------


def problem(features: int, outputs: int, samples: int) -> tuple[Tensor, Inputs]:
    """Normal weights n×N, and correlated inputs, as they leave a ReLU; for Ỹ, the layer before it has changed a bit."""
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator)
    factors, before = normal(samples, FACTORS), normal(FACTORS, features)
    drifted = before + DRIFT * normal(FACTORS, features)
    return normal(outputs, features), Inputs(torch.relu(factors @ before), torch.relu(factors @ drifted))


def relative_error(weight: Tensor, quantized: Tensor, inputs: Inputs) -> float:
    """‖Yw − Ỹq‖/‖Yw‖ over all outputs."""
    wanted = inputs.original @ weight.T
    return float((wanted - inputs.drifted @ quantized.T).norm() / wanted.norm())


def loop(weight: Tensor, inputs: Inputs, alphabet: Alphabet) -> Tensor:
    """GPFQ as it is defined: q_t = Q(ỹ_t·(u + y_t w_t)/|ỹ_t|²), then u += y_t w_t − ỹ_t q_t, which is m×n."""
    w, y, drifted = (values.T.contiguous() for values in (weight, *inputs))  # a row for each t
    squares, products = (drifted * drifted).sum(1), (drifted * y).sum(1)
    u, q = torch.zeros(y.shape[1], w.shape[1]), torch.empty_like(w)
    for t in range(len(w)):
        q[t] = alphabet.nearest((drifted[t] @ u + products[t] * w[t]) / squares[t])
        u.addmm_(torch.stack((y[t], -drifted[t]), 1), torch.stack((w[t], q[t])))  # both updates in one pass over u
    return q.T


def gram_products(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """ỸᵀỸ and ỸᵀY."""
    return inputs.drifted.T @ inputs.drifted, inputs.drifted.T @ inputs.original


class BrevitasLayer(nn.Module):
    """A QuantLinear that is given Ỹ while its weights are quantized, and Y while Brevitas looks at the float model."""

    def __init__(self, weight: Tensor, alphabet: Alphabet) -> None:
        super().__init__()
        quantizer = type(
            "Quantizer",
            (Int8WeightPerTensorFloat,),
            {
                "bit_width": alphabet.bits,
                "narrow_range": True,  # as many levels above zero as below
                "scaling_impl_type": ScalingImplType.CONST,
                "scaling_init": alphabet.step * (alphabet.levels // 2),  # the largest level
            },
        )
        self.linear = brevitas_nn.QuantLinear(*weight.T.shape, bias=False, weight_quant=quantizer)
        self.linear.weight.data.copy_(weight)
        self.eval()

    def forward(self, inputs: Inputs) -> Tensor:
        quantized = self.linear.weight_quant.is_quant_enabled
        return self.linear(inputs.drifted if quantized else inputs.original)


@torch.no_grad()
def by_brevitas(model: BrevitasLayer, mode: Callable[..., Any], inputs: Inputs) -> Tensor:
    """The quantized weights n×N; the model is changed."""
    with mode(model) as algorithm:
        algorithm.model(inputs)
        algorithm.update()
    return model.linear.quant_weight().value


def quantizers(weight: Tensor, inputs: Inputs, alphabet: Alphabet, calls: int) -> dict[str, Callable[[], Tensor]]:
    """Every method, to be called that often."""
    methods: dict[str, Callable[[], Tensor]] = {}
    if BREVITAS:
        for name, mode in ((GPFQ, gpfq_mode), (GPTQ, gptq_mode)):
            models = [BrevitasLayer(weight, alphabet) for _ in range(calls)]  # Brevitas changes its model in place
            methods[name] = lambda models=models, mode=mode: by_brevitas(models.pop(), mode, inputs)  # type: ignore[misc]
    methods[LOOP] = lambda: loop(weight, inputs, alphabet)
    methods[OURS] = lambda: tamis_layer(weight, inputs, alphabet)
    return methods


def measure_layer(features: int, outputs: int, samples: int, rounds: int) -> dict[str, Any]:
    """CPU seconds of every method, which do not depend on the alphabet, and its errors."""
    weight, inputs = problem(features, outputs, samples)
    tasks: dict[str, Callable[[], Any]] = {**quantizers(weight, inputs, TERNARY, rounds)}
    seconds = best_cpu_seconds(tasks | {GRAM: lambda: gram_products(inputs)}, rounds)
    errors: dict[str, dict[str, float]] = {}
    for alphabet in (TERNARY, FINE):
        methods = {"nearest": partial(alphabet.nearest, weight)} | quantizers(weight, inputs, alphabet, 1)
        errors[f"{alphabet.levels} levels"] = {
            name: relative_error(weight, method(), inputs) for name, method in methods.items()
        }
    return {"seconds": seconds, "errors": errors}


def report_layer(name: str, figures: dict[str, Any]) -> None:
    """Seconds, how many times those of each peer they are, and errors."""
    seconds, errors = figures["seconds"], figures["errors"]
    peers = [peer for peer in (GPFQ, LOOP, GRAM) if peer in seconds]
    titles = ["seconds", *(f"/ {peer}" for peer in peers), *(f"error, {levels}" for levels in errors)]
    print(name)
    print(" " * 22 + "".join(f"{title:>22s}" for title in titles))
    for method in dict.fromkeys([*seconds, *errors["3 levels"]]):
        cells = [f"{seconds[method]:.3f}" if method in seconds else ""]
        cells += [f"{seconds[method] / seconds[peer]:.2f}" if method in seconds else "" for peer in peers]
        cells += [f"{of[method]:.4f}" if method in of else "" for of in errors.values()]
        print(f"  {method:20s}" + "".join(f"{cell:>22s}" for cell in cells))


# -- a whole network ---------------------------------------------------------------------------------------------------


class Floor:
    """Forward passes and Gram products of a whole network, batch by batch, each part on its own clock."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
        self.seconds = {"two forward passes": 0.0, "cutting out the patches": 0.0, GRAM: 0.0}

    @torch.no_grad()
    def run(self, images: Tensor) -> None:
        """Both passes are those of the network itself: how long they take does not depend on the weights."""
        sizes = [layer.weight[0].numel() for layer in self.layers]
        grams = [(torch.zeros(size, size), torch.zeros(size, size)) for size in sizes]
        for batch in images.split(BATCH):
            original, drifted = (self._clocked("two forward passes", self._layer_inputs, batch) for _ in range(2))
            for layer, y, other, sums in zip(self.layers, original, drifted, grams, strict=True):
                both = [self._clocked("cutting out the patches", patches, layer, x) for x in (y, other)]
                self._clocked(GRAM, add_products, sums, *both)

    def _clocked(self, part: str, task: Callable[..., Any], *arguments: Any) -> Any:
        start = time.thread_time()
        result = task(*arguments)
        self.seconds[part] += time.thread_time() - start
        return result

    def _layer_inputs(self, batch: Tensor) -> list[Tensor]:
        seen: dict[nn.Module, Tensor] = {}
        hooks = [
            layer.register_forward_pre_hook(lambda module, inputs: seen.update({module: inputs[0]}))
            for layer in self.layers
        ]
        self.model(batch)
        for hook in hooks:
            hook.remove()
        return [seen[layer] for layer in self.layers]


def patches(layer: nn.Module, x: Tensor) -> Tensor:
    """The samples of a layer as columns: N×m."""
    if isinstance(layer, nn.Linear):
        return x.T.contiguous()
    columns = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return columns.transpose(0, 1).flatten(1)


def add_products(sums: tuple[Tensor, Tensor], y: Tensor, drifted: Tensor) -> None:
    """Add ỸᵀỸ and ỸᵀY, of samples in columns, to their sums."""
    sums[0].addmm_(drifted, drifted.T)
    sums[1].addmm_(drifted, y.T)


def measure_network(rounds: int) -> dict[str, Any]:
    """CPU seconds of the floor, part by part, and of tamis, and its peak memory in bytes."""
    model = resnet20().eval()
    model.load_state_dict(load_file(PRETRAINED))
    images = load_data(f"cifar10:train[:{IMAGES}]").normalised()
    floors: list[Floor] = []

    def floor() -> None:
        floors.append(Floor(model))
        floors[-1].run(images)

    net = tamis.trace(model, images[:1])
    memory = {str(count): peak_memory(partial(tamis_network, net, images[:count])) for count in MEMORY_IMAGES}
    tasks: dict[str, Callable[[], Any]] = {"floor": floor, OURS: lambda: tamis_network(net, images)}
    seconds = best_cpu_seconds(tasks, rounds)
    del seconds["floor"]  # it includes cutting out the patches
    parts = {part: min(each.seconds[part] for each in floors) for part in floors[0].seconds}
    return {"seconds": parts | seconds, "peak memory": memory}


def report_network(figures: dict[str, Any]) -> None:
    """The floor, part by part, and tamis against it."""
    seconds = figures["seconds"]
    floor = seconds["two forward passes"] + seconds[GRAM]
    print(f"ResNet-20, {IMAGES:,} images, {LEVELS} levels")
    for name, value in seconds.items():
        print(f"  {name:36s} {value:8.2f} s")
    print(f"  {'floor: passes and products':36s} {floor:8.2f} s")
    if OURS in seconds:
        print(f"  tamis: {seconds[OURS] / floor:.2f} × the floor")
    for count, peak in figures["peak memory"].items():
        print(f"  peak memory of tamis, {int(count):,} images: {peak / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--network", action="store_true", help="a whole ResNet-20 as well")
    parser.add_argument("--store", action="store_true", help="write docs/results/quantize.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not BREVITAS:
        print("Brevitas is not installed, so it is not measured; the top of this file says how to install it\n")
    figures: dict[str, Any] = {"brevitas": BREVITAS, "layers": {}}
    for name, shape in LAYERS.items():
        figures["layers"][name] = measure_layer(*shape, rounds=arguments.rounds)
        report_layer(name, figures["layers"][name])
    if arguments.network:
        figures["network"] = measure_network(arguments.rounds)
        report_network(figures["network"])
    if arguments.store:
        print(f"\nstored in {store('quantize', figures)}")


if __name__ == "__main__":
    main()
