"""Neuron-wise rescaling gives the same function from other parameters (thesis, Definition 2.4.1, Algorithm 3.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidInput, InvalidParameters
from tamis.graph.fixed_values import FixedValues
from tamis.graph.fold import find_foldable, fold_batch_norm
from tamis.graph.network import Network
from tamis.graph.ops import OPAQUE, Call, Capability, Entrywise, capability, describe
from tamis.graph.symmetry import ONE, Layer, Scales

POWERS = (1.0, 128.0, 4096.0)  # thesis, appendix E.1.2


def symmetries(net: Network) -> Scales:
    """Return the rescaling symmetries of a network; channels of a convolution are rescaled whole."""
    products = frozenset(node.name for node in net.nodes if describe(node).entrywise(node) is Entrywise.PRODUCT)
    scales = Scales(net, frozenset(find_foldable(net)), products)
    fixed = FixedValues(net)
    values: dict[str, Any] = {}
    for name, shape in zip(net.inputs, net.input_shapes, strict=True):
        # The user's inputs and outputs keep their scale: only hidden neurons may be rescaled.
        values[name] = torch.tensor(ONE, dtype=torch.float64).expand(shape)

    def lookup(name: str) -> Any:
        return values[name] if name in values else fixed[name]

    for node in net.data_nodes:
        # Nothing can be rescaled across an operation that is not homogeneous, or after one with unknown results.
        unknown = any(name in values and values[name] is None for name in node.references)
        movable = capability(net, node) is Capability.HOMOGENEOUS and not unknown
        op = describe(node) if movable else OPAQUE
        values[node.name] = op.ties(Call(node, lookup, net.carries_data), scales)
    for name in net.output_names:
        scales.fix(values.get(name))
    return scales


def rescale(net: Network, seed: int = 0) -> Network:
    """Return the same function with every hidden channel rescaled by a random power from {1, 128, 4096}.

    These are powers of two, as in the thesis' appendix E.1.2, so nothing is rounded (except in float16, where a weight
    divided by 4096 may be too small to keep all its digits).
    Channels that a skip connection ties share one power; inputs, outputs and whatever has no such symmetry keep their
    scale.

    Args:
        net: a network.
        seed: same seed and same graph, same powers.

    Example:
        >>> x = torch.randn(5, 3)
        >>> net = tamis.trace(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)), x)
        >>> other = tamis.rescale(net, seed=1)
        >>> torch.equal(other(x), net(x)), torch.equal(other.params["0.weight"], net.params["0.weight"])
        (True, False)
    """
    scales = symmetries(net)
    generator = torch.Generator().manual_seed(seed)
    choice = torch.randint(len(POWERS), (scales.count,), generator=generator)
    powers = torch.tensor(POWERS, dtype=torch.float64)[choice]
    # Indexed by representative: tied variables get one power, and all that is tied to ONE gets 1.
    powers[: int(ONE) + 1] = 1.0
    return scales.apply(powers[scales.groups()])


def normalize(net: Network, q: float = 1) -> Network:
    """Return the q-normalized network of the same function (thesis, Definition 3.2.1 and Algorithm 3.2.1).

    Layer by layer, every hidden neuron's incoming weights and bias are divided by their ℓ^q-norm and what flows out of
    it is multiplied by it; what flows out of a neuron with nothing coming in is set to zero.

    Deviations from the thesis:
        1. A channel of a convolution is normalized whole, by its kernel and bias, so its border neurons, which
           read padding, come out at most 1.
        2. A batch-norm is one neuron with the layer before it.
        3. Where a skip connection ties channels, they are rescaled together, by the norm of the first.
        4. Neurons without parameters of their own (pooling, addition) cannot be normalized and are not.
        With 3 or 4, Theorem 3.3.2's equality of path-norm and Π_{q,r} does not hold, and Π_{q,r} may even grow.

    Example:
        >>> mlp = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()
        >>> net = tamis.trace(mlp, torch.zeros(1, 3, dtype=torch.float64))
        >>> unit = tamis.normalize(net)
        >>> abs(tamis.path_norm(unit) / tamis.path_norm(net) - 1) < 1e-9  # the paths are those of before
        True
        >>> abs(tamis.product_norm(unit) / tamis.path_norm(net) - 1) < 1e-9  # and now the layers' norms say it all
        True
    """
    if not 0 < q < float("inf"):
        raise InvalidInput(f"normalize needs 0 < q < ∞, got q = {q}")
    net.check_finite()

    def inverse_norm(layer: Layer, weight: Tensor, bias: Tensor | None) -> Tensor:
        sums = layer.sum_into_outputs(weight.abs() ** q)
        # 0^(−1/q) is ∞, which `choose_scales` reads as "nothing flows in".
        return (sums if bias is None else sums + bias.abs() ** q) ** (-1 / q)

    scales = symmetries(net)
    chosen, dead = choose_scales(scales, inverse_norm)
    normalized = scales.apply(chosen, dead)
    try:
        normalized.check_finite()
    except InvalidParameters as error:
        raise OverflowError(f"the normalized network cannot hold its path-norm in its last layer: {error}") from error
    return normalized


def choose_scales(scales: Scales, rule: Callable[[Layer, Tensor, Tensor | None], Tensor]) -> tuple[Tensor, Tensor]:
    """Choose λ for every variable, layer by layer from input to output.

    Args:
        scales: the symmetries of a network.
        rule: gives a layer's λ per output channel from its weight (already divided by the λ of what it reads) and
            bias; infinite where nothing flows into a channel.

    Returns:
        λ per variable, and which variables are dead: nothing flows into any neuron of theirs. Where nothing has flowed
        yet, weights that read it count for nothing.
    """
    folded = fold_batch_norm(scales.net)
    values = FixedValues(folded, dtype=torch.float64)
    groups = scales.groups()
    chosen = torch.ones(scales.count, dtype=torch.float64)
    decided = torch.zeros(scales.count, dtype=torch.bool)
    decided[: int(ONE) + 1] = True
    fed = scales.mark_representatives(scales.fed, groups)
    # Layers are in the order of the graph, so λ of what a layer reads is chosen before the layer is reached.
    for layer in scales.layers:
        incoming, outgoing = groups[layer.incoming.long()], groups[layer.outgoing.long()]
        weight, bias = layer_weights(folded, layer, values)
        # What is neither decided nor fed has had nothing flow into it: its weights must not count in a norm.
        flowing = torch.where(decided[incoming] | fed[incoming], 1 / chosen[incoming], 0.0)
        wanted = rule(layer, weight * layer.spread_over_inputs(flowing.to(weight.device), weight.dim()), bias).cpu()
        # Tied channels of one layer share the smallest factor, that is the largest norm.
        shared = torch.full((scales.count,), float("inf"), dtype=torch.float64)
        shared.scatter_reduce_(0, outgoing, wanted, "amin")
        new = torch.isfinite(shared) & ~decided
        chosen[new] = shared[new]
        decided |= new
    dead = ~decided & ~fed & ~scales.mark_representatives(scales.kept, groups)
    return chosen[groups], dead[groups]


def layer_weights(folded: Network, layer: Layer, values: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return a layer's effective weight and bias, batch-norm included."""
    node = folded.node[layer.node]
    if layer.weight not in node.arguments:  # a batch-norm written out as a product and a sum
        return values[f"{layer.node}.s"].flatten(), values[f"{layer.node}.t"].flatten()
    arguments = describe(node).layer(node)
    # Asked of the operation, since a batch-norm folded into the layer may have brought a bias that `layer` had not.
    bias = arguments.bias if arguments else None
    weight, reference = values[node.arguments[layer.weight].name], node.arguments.get(bias) if bias else None
    return weight, None if reference is None else values[reference.name].flatten().expand(len(layer.outgoing))
