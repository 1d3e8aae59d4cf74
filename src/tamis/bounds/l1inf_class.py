"""The theorems of Yang hold for a class of L1,∞-normalized networks, and a network is read here as a member of it.

SN_{c,o} holds the networks T_{k+1} ∘ σ ∘ T_k ∘ … ∘ σ ∘ T_1 of k hidden layers whose hidden neurons have incoming
weights, with the bias, of ℓ1-norm at most c, and whose j-th output has incoming weights, with the bias, of ℓ1-norm at
most o_j. A convolution is such a layer with shared weights: its norm is that of one filter with its bias (ERRATA 24).

Printed: "σ(0) = 0 holds for Sigmoid"; it does not, and plain sigmoid is refused (ERRATA 22).

Reference: yang2021l1inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.bounds.arguments import check_count, check_number
from tamis.bounds.bound import EPSILON, round_up
from tamis.errors import AssumptionViolated, InvalidInput
from tamis.graph import FixedValues, Network, Node, Ref, fold_batch_norm
from tamis.graph.ops import RELU, SIGMOID, TANH, Call, Entrywise, ScalarFunction, describe

SHIFTED_SIGMOID = "shifted sigmoid"
LIPSCHITZ = {"relu": 1.0, "tanh": 1.0, SHIFTED_SIGMOID: 0.25}

IN_THE_BOX = "every input lies in [−1, 1]^m"
INDEPENDENT = "the samples are independent draws from one distribution"
FIXED_CLASS = "k, c and σ were fixed before the samples were seen, not chosen by looking at the trained network"
FIXED_OUTPUT = "o was fixed before the samples were seen, not read off the trained network"
VANISHES = "σ(0) = 0, and σ is Lipschitz"


@dataclass(frozen=True)
class L1InfConstants:
    """These constants are what the theorems need to know about a network, or about all networks of a class.

    Attributes:
        k: how many hidden layers it has.
        c: the largest ℓ1-norm of a hidden neuron's incoming weights with its bias; 0 without hidden layers.
        o: the same norm of each output.
        inputs: m, how many numbers one input consists of.
        activation: "relu", "tanh" or "shifted sigmoid"; "relu" without hidden layers, where it does not matter.

    Example:
        >>> L1InfConstants(k=1, c=0.5, o=(1.0,), inputs=10)
        L1InfConstants(k=1, c=0.5, o=(1.0,), inputs=10, activation='relu')
    """

    k: int
    c: float
    o: tuple[float, ...]
    inputs: int
    activation: str = "relu"

    def check(self) -> None:
        """Raise InvalidInput where the numbers describe no class of networks."""
        check_class(self.k, self.c, tuple(self.o), self.inputs)

    @property
    def log_largest(self) -> float:
        """Return log max(1, (γ_σ c)^k), which bounds how far the hidden layers carry an input of [−1, 1]^m."""
        return log_largest(self.k, self.c, self.activation)


def l1inf_constants(net: Network) -> L1InfConstants:
    """Return the constants of a chain of linear or convolutional layers with one activation between them.

    Batch normalization is folded into the layer before it. Anything else, such as a residual connection, pooling, or
    plain sigmoid, is refused: the theorems do not speak of it.

    The theorems hold for a class that is fixed before the data are seen. A network trained under ‖T_l‖_{1,∞} ≤ c is in
    the class of that c; the c that is read here is the smallest it is in, and depends on the data it was trained on.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> l1inf_constants(net).k
        1

    Reference: yang2021l1inf.
    """
    if not isinstance(net, Network):
        raise InvalidInput(f"l1inf_constants needs a Network, got {type(net).__name__}: trace the model first")
    net.check_finite()
    # The norm that counts is that of the weights that data meets, s w and s b + t, not of w beside a batch-norm.
    net = fold_batch_norm(net)
    layers, activations = _separate_layers(net, _list_chain(net))
    values = FixedValues(net, dtype=torch.float64)
    norms = [_compute_column_norms(layer, values) for layer in layers]
    return L1InfConstants(
        k=len(layers) - 1,
        c=max((float(each.max()) for each in norms[:-1]), default=0.0),
        o=tuple(norms[-1].tolist()),
        inputs=math.prod(net.input_shapes[0][1:]),
        activation=activations[0] if activations else "relu",
    )


def log_growth(c: float, activation: str) -> float:
    """Compute log(γ_σ c), rounded up, where γ_σ is the Lipschitz constant of the activation; −∞ for c = 0."""
    gamma = math.log(lipschitz(activation))
    if c == 0:
        return -math.inf
    # The two may cancel, and their rounding stays. Without any there is none: 1 has the logarithm 0.
    return gamma + math.log(c) + 2 * EPSILON * (abs(gamma) + abs(math.log(c)))


def lipschitz(activation: str) -> float:
    """Return γ_σ, the Lipschitz constant of an activation with σ(0) = 0; AssumptionViolated for plain sigmoid."""
    if activation == "sigmoid":
        raise AssumptionViolated(
            "the bounds need σ(0) = 0, and sigmoid(0) = 1/2 (ERRATA 22): subtract 1/2 in the network and pass "
            f"activation={SHIFTED_SIGMOID!r}, or use 'relu' or 'tanh'"
        )
    if activation not in LIPSCHITZ:
        raise InvalidInput(f"activation must be one of {', '.join(map(repr, LIPSCHITZ))}, got {activation!r}")
    return LIPSCHITZ[activation]


def log_power(log_ratio: float, exponent: int) -> float:
    """Compute log(r^exponent) for r ≥ 0, with r⁰ = 1; rounded up."""
    # 0 · (−∞) would be no number, and r⁰ = 1 even for r = 0: without hidden layers c does not matter.
    return round_up(exponent * log_ratio) if exponent else 0.0


def log_largest(k: int, c: float, activation: str) -> float:
    """Compute log max(1, (γ_σ c)^k): how far the layers can carry an input from [−1, 1]."""
    # At least 1, since a bias of the output layer reads a constant 1 whatever the hidden layers do to an input.
    return max(0.0, log_power(log_growth(c, activation), k))


def check_class(k: int, c: float, o: float | Sequence[float], inputs: int = 1) -> None:
    """Raise InvalidInput where the numbers describe no class of networks."""
    check_count("k", k, least=0)
    check_count("inputs", inputs)
    check_number("c", c)
    if isinstance(o, Sequence) and not o:
        raise InvalidInput("o must be a bound for each output, or one for all: got an empty sequence")
    for value in o if isinstance(o, Sequence) else [o]:
        check_number("o", value)


def _list_chain(net: Network) -> list[Node]:
    """Return the nodes that data passes, one after another; AssumptionViolated where the graph is not a chain."""
    if len(net.inputs) != 1 or len(net.output_names) != 1 or not net.batched:
        raise AssumptionViolated(
            f"the L1,∞ bounds speak of one input and one output for each sample: the network has {len(net.inputs)} "
            f"input(s) and {len(net.output_names)} output(s){'' if net.batched else ', and takes no batches'}"
        )
    # Invariant: every node so far reads the one before it and nothing else that depends on the input.
    before = net.inputs[0]
    for node in net.data_nodes:
        read = [name for name in node.references if name in net.carries_data]
        if read != [before]:
            raise _make_refusal(node, f"reads {', '.join(read)}, so the network is not a chain of layers")
        before = node.name
    if net.output_names != (before,):
        raise AssumptionViolated(f"the network's output '{net.output_names[0]}' is not its last operation '{before}'")
    return list(net.data_nodes)


def _separate_layers(net: Network, chain: list[Node]) -> tuple[list[Node], list[str]]:
    """Return layers and the activations between them; AssumptionViolated where they do not alternate."""
    layers: list[Node] = []
    activations: list[str] = []
    position = 0
    while position < len(chain):
        node = chain[position]
        op = describe(node)
        function = op.function(Call(node, lambda name: None, ()))
        # σ − 1/2 is two nodes, so the subtraction is consumed together with its sigmoid.
        shifted = function == SIGMOID and position + 1 < len(chain) and _subtracts_half(chain[position + 1])
        name = SHIFTED_SIGMOID if shifted else _ACTIVATIONS.get(function)
        if function == SIGMOID and not shifted:
            raise _make_refusal(node, "does not vanish at 0 (ERRATA 22): subtract 1/2 from it, or use ReLU or tanh")
        if name is not None:
            if len(layers) != len(activations) + 1:
                raise _make_refusal(node, "does not follow a linear or convolutional layer")
            activations.append(name)
        elif _is_layer(net, node):
            if len(layers) != len(activations):
                raise _make_refusal(
                    node, "follows another layer without an activation between them: multiply them first"
                )
            layers.append(node)
        elif not (op.entrywise(node) is Entrywise.RESHAPE and node.shape is not None and node.shape[0] == 1):
            raise _make_refusal(node, "is not a linear or convolutional layer, ReLU, tanh or sigmoid − 1/2")
        position += 2 if shifted else 1
    _check_ends(chain, layers, activations)
    return layers, activations


_ACTIVATIONS: dict[ScalarFunction | None, str] = {RELU: "relu", TANH: "tanh"}


def _check_ends(chain: list[Node], layers: list[Node], activations: list[str]) -> None:
    if len(layers) != len(activations) + 1:
        raise AssumptionViolated("the L1,∞ bounds speak of networks whose last operation is a linear layer")
    if len(layers[-1].shape or ()) != 2:
        raise _make_refusal(layers[-1], f"is the output layer and gives the shape {layers[-1].shape}, not one vector")
    if len(set(activations)) > 1:
        raise AssumptionViolated(f"the L1,∞ bounds speak of one activation; the network has {activations}")


def _subtracts_half(node: Node) -> bool:
    """Return whether a node subtracts one half from its first argument."""
    return describe(node).added_number(node) == -0.5


def _is_layer(net: Network, node: Node) -> bool:
    op = describe(node)
    names = op.layer(node)
    if names is None or op.channel_axes != (0, 1):  # the norms below are of rows
        return False
    fixed = (node.arguments[names.weight], node.arguments[names.bias] if names.bias else None)
    return not any(isinstance(each, Ref) and each.name in net.carries_data for each in fixed)


def _compute_column_norms(layer: Node, values: FixedValues) -> Tensor:
    """Return the ℓ1-norm of each neuron's incoming weights, a row or a filter, with its bias, rounded up."""
    weights = values[layer.arguments["weight"].name].abs().flatten(1)
    norms, bias = weights.sum(1), layer.arguments["bias"]
    norms = norms if bias is None else norms + values[bias.name].abs()
    return norms * (1 + (weights.shape[1] + 2) * EPSILON)  # in whatever order the terms are added


def _make_refusal(node: Node, why: str) -> AssumptionViolated:
    where = node.module or "the top level of the model"
    return AssumptionViolated(f"the L1,∞ bounds do not cover this network: '{node.op}' at {where} {why}")
