"""Spaces: structures, their probabilities, flat weights, neighbours, and networks against torch's own layers."""

import itertools
import math

import pytest
import torch
from torch import nn

from tamis.bayes.networks import Conv1d, Conv2d, Dense, Graph, Nodes
from tamis.bayes.prior import REAL, SCALE, SIGN, Prior
from tamis.bayes.space import Space, Structure, StructurePrior, grid
from tamis.bayes.xnor import Xnor
from tamis.binary import BinaryConv2d, BinaryLayer
from tamis.binary.layers import BinaryConv1d, BinaryLinear
from tamis.errors import InvalidInput

ADJACENCY = torch.tensor([[0.0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
FEATURES = torch.randn(4, 3, generator=torch.Generator().manual_seed(5))
SPACES: list[tuple[Space, torch.Tensor]] = [
    (Dense((4,), 3, [1, 2, 3], [2, 5]), torch.randn(6, 4)),
    (Conv1d((2, 9), 3, [1, 2, 3], [2, 3], [2, 3]), torch.randn(6, 2, 9)),
    (Conv2d((1, 6, 5), 3, [1, 2, 3], [2, 3], [2, 3]), torch.randn(6, 1, 6, 5)),
    (Graph(Nodes(ADJACENCY, FEATURES), 3, [1, 2, 3], [2, 5], [1, 2]), torch.tensor([0, 3, 1, 1, 2, 0])),
    (Xnor((4,), 3, [3, 4], [2, 5]), torch.randn(6, 4)),
    (Xnor((2, 9), 3, [3, 4], [2, 3], [2, 3]), torch.randn(6, 2, 9)),
    (Xnor((1, 6, 5), 3, [3, 4], [2, 3], [1, 2]), torch.randn(6, 1, 6, 5)),
]
NAMES = ["dense", "conv1d", "conv2d", "graph", "xnor dense", "xnor conv1d", "xnor conv2d"]
each_space = pytest.mark.parametrize(("space", "x"), SPACES, ids=NAMES)


def drawn(space: Space, structure: Structure, count: int, seed: int = 0) -> torch.Tensor:
    prior, kinds = Prior(0.5, 3.0), space.kinds(structure)
    return prior.weights(prior.sample_latent(kinds, count, torch.Generator().manual_seed(seed)), kinds)


def test_probabilities_are_products() -> None:
    union = grid([1, 2, 3], [4, 8], [3, 5], StructurePrior([0.5, 0.3, 0.2], [0.9, 0.1], [0.25, 0.75]))
    assert union[Structure(1, 0, 0)] == 0.5
    assert math.isclose(union[Structure(3, 8, 3)], 0.2 * 0.1 * 0.25)
    assert len(union) == 1 + 2 * 4 and math.isclose(sum(union.values()), 1)


@each_space
def test_probabilities_sum_to_one(space: Space, x: torch.Tensor) -> None:
    assert math.isclose(sum(space.probabilities.values()), 1)


def test_structures_that_do_not_fit_are_left_out() -> None:
    space = Conv1d((1, 5), 2, [2, 3], [1], [3, 5])
    assert set(space.structures) == {Structure(2, 1, 3), Structure(2, 1, 5), Structure(3, 1, 3)}
    assert all(math.isclose(share, 1 / 3) for share in space.probabilities.values())


@each_space
def test_flat_weights_are_split_and_counted(space: Space, x: torch.Tensor) -> None:
    for structure in space.structures:
        flat = torch.arange(space.count(structure))
        parts = space.split(structure, flat)
        assert torch.equal(torch.cat([part.reshape(-1) for part in parts.values()]), flat)
        assert len(space.kinds(structure)) == len(flat)


@each_space
def test_neighbours_are_mutual_and_connected(space: Space, x: torch.Tensor) -> None:
    reached, ahead = {0}, [0]
    while ahead:
        for other in space.neighbours[ahead.pop()]:
            if other not in reached:
                reached.add(other)
                ahead.append(other)
    assert reached == set(range(len(space.structures)))
    for number, beside in enumerate(space.neighbours):
        assert number not in beside
        assert all(number in space.neighbours[other] for other in beside)


@each_space
def test_matches_are_the_same_pairs_either_way(space: Space, x: torch.Tensor) -> None:
    for one, two in itertools.product(range(len(space.structures)), repeat=2):
        ours, theirs = space.match(one, two)
        back = space.match(two, one)
        assert set(zip(ours.tolist(), theirs.tolist(), strict=True)) == set(
            zip(back[1].tolist(), back[0].tolist(), strict=True)
        )
        assert len(set(ours.tolist())) == len(ours) and len(set(theirs.tolist())) == len(theirs)
        kinds = [space.kinds(space.structures[each]) for each in (one, two)]
        assert torch.equal(kinds[0][ours], kinds[1][theirs])
        if one == two:
            assert len(ours) == space.count(space.structures[one])


@each_space
def test_particles_are_computed_together_as_one_by_one(space: Space, x: torch.Tensor) -> None:
    x = space.check_inputs(x)
    for structure in space.structures:
        weights = drawn(space, structure, 3)
        together = space.logits(structure, weights, x)
        assert together.shape == (3, 6, 3)
        for flat, logits in zip(weights, together, strict=True):
            assert torch.allclose(space.forward(structure, space.split(structure, flat), x), logits, atol=1e-10)


@each_space
def test_losses_of_rounds(space: Space, x: torch.Tensor) -> None:
    x = space.check_inputs(x)
    stacked = torch.stack([x[:3], x[3:]])
    labels = torch.tensor([[0, 1, 2], [2, 1, 0]])
    structure = space.structures[-1]
    (flat,) = drawn(space, structure, 1)
    losses = space.round_losses(structure, flat, stacked, labels)
    for loss, inputs, y in zip(losses, stacked, labels, strict=True):
        logits = space.forward(structure, space.split(structure, flat), inputs)
        assert torch.allclose(loss, nn.functional.cross_entropy(logits, y))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_chains_are_torchs_layers(number: int) -> None:
    space, x = SPACES[number]
    layer_class = (nn.Linear, nn.Conv1d, nn.Conv2d)[number]
    structure = next(each for each in space.structures if each.layers == 3)
    (flat,) = drawn(space, structure, 1)
    weights = space.split(structure, flat)
    layers: list[nn.Module] = []
    for layer in range(2):
        weight = weights[f"hidden.{layer}.weight"]
        made = layer_class(weight.shape[1], weight.shape[0], *weight.shape[2:3]).double()
        made.load_state_dict({"weight": weight, "bias": weights[f"hidden.{layer}.bias"]})
        layers += [made, nn.ReLU()]
    last = nn.Linear(weights["last.weight"][0].numel(), 3).double()
    last.load_state_dict({"weight": weights["last.weight"].flatten(1), "bias": weights["last.bias"]})
    expected = nn.Sequential(*layers, nn.Flatten(), last)(x.double())
    assert torch.allclose(space.forward(structure, weights, x.double()), expected)


def test_graph_convolutions_are_the_printed_rule() -> None:
    space, nodes = SPACES[3]
    degrees = ADJACENCY.double().sum(1)
    root = torch.diag(torch.tensor([1 / math.sqrt(d) if d else 0.0 for d in degrees.tolist()], dtype=torch.float64))
    step = root @ ADJACENCY.double() @ root
    for size in (1, 2):
        structure = Structure(2, 5, size)
        weights = space.split(structure, drawn(space, structure, 1)[0])
        hop = torch.linalg.matrix_power(step, size)
        hidden = torch.relu(hop @ FEATURES.double() @ weights["hidden.0.weight"])
        expected = (hop @ hidden @ weights["last.weight"])[nodes]
        assert torch.allclose(space.forward(structure, weights, nodes), expected)


@pytest.mark.parametrize("number", [4, 5, 6])
def test_xnor_networks_are_tamis_binary_layers(number: int) -> None:
    space, x = SPACES[number]
    assert isinstance(space, Xnor)
    structure = next(each for each in space.structures if each.layers == 4)
    weights = space.split(structure, drawn(space, structure, 1)[0])
    value = space.convolve(x.double(), weights["first.weight"], weights["first.bias"])
    for layer in range(2):
        binary = weights[f"binary.{layer}.weight"]
        size = space.positions(structure, layer + 2)
        made: BinaryLayer
        if number == 4:
            made = BinaryLinear(*binary.shape[::-1]).double()
        else:
            made_class = BinaryConv1d if number == 5 else BinaryConv2d
            made = made_class(
                binary.shape[1], binary.shape[0], binary.shape[2], scale="rank_one", output_size=size
            ).double()
        with torch.no_grad():
            made.weight.copy_(binary)
            for axis, factor in enumerate(made.factors.values()):
                factor.copy_(weights[f"binary.{layer}.scale.{axis}"].reshape(factor.shape))
            value = made.train()(value)
    expected = space.classify(weights, value)
    assert torch.allclose(space.forward(structure, weights, x.double()), expected)


def test_kinds_of_an_xnor_network() -> None:
    space, _ = SPACES[6]
    structure = Structure(3, 2, 2)  # 6×5 → 5×4 → 4×3
    kinds = space.kinds(structure)
    assert int((kinds == SIGN).sum()) == 2 * 2 * 2 * 2
    assert int((kinds == SCALE).sum()) == 2 + 4 + 3
    assert int((kinds == REAL).sum()) == 2 * 4 + 2 + 3 * 2 * 4 * 3 + 3


def test_gradients_reach_all_weights_of_an_xnor_network() -> None:
    space, x = SPACES[6]
    structure = Structure(4, 3, 1)
    (flat,) = drawn(space, structure, 1)
    labels = torch.tensor([[0, 1, 2, 0, 1, 2]])

    def loss(weights: torch.Tensor) -> torch.Tensor:
        return space.round_losses(structure, weights, x.double()[None], labels).sum()

    for name, part in space.split(structure, torch.func.grad(loss)(flat)).items():
        assert bool(part.any()), name


def test_what_is_refused() -> None:
    with pytest.raises(InvalidInput, match="alpha"):
        Dense((4,), 3, [1, 2], [2], structure_prior=StructurePrior(alpha=[0.5, 0.6]))
    with pytest.raises(InvalidInput, match="different"):
        Dense((4,), 3, [2, 2], [2])
    with pytest.raises(InvalidInput, match="layers"):
        Dense((4,), 3, [0], [2])
    with pytest.raises(InvalidInput, match="no size"):
        Dense((4,), 3, [2], [2], [3])
    with pytest.raises(InvalidInput, match="classes"):
        Dense((4,), 1, [2], [2])
    for shape in (3, (3, 3), (3.5,), (0,), ("3",)):
        with pytest.raises(InvalidInput, match="input_shape"):
            Dense(shape, 2, [1], [2])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no structure fits"):
        Conv1d((1, 3), 2, [2], [1], [5])
    with pytest.raises(InvalidInput, match="layers ≥ 3"):
        Xnor((4,), 3, [2], [2])
    with pytest.raises(InvalidInput, match="two inputs or more"):
        SPACES[4][0].check_inputs(torch.zeros(1, 4))
    with pytest.raises(InvalidInput, match="symmetric"):
        Graph(Nodes(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.zeros(2, 3)), 2, [2], [2])
    with pytest.raises(InvalidInput, match="numbered 0 to 3"):
        SPACES[3][0].check_inputs(torch.tensor([4]))
    with pytest.raises(InvalidInput, match=r"\(batch, 4\)"):
        SPACES[0][0].check_inputs(torch.zeros(2, 5))
    with pytest.raises(InvalidInput, match="finite"):
        SPACES[0][0].check_inputs(torch.tensor([[math.nan, 0, 0, 0]]))
