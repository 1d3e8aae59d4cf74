"""A compressed network: what it holds, what it does to a module, and what comes back from its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.artifact import format
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters

Example = tuple[Tensor, ...]


def plain(activation: type[nn.Module] = nn.ReLU, width: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), activation(), nn.Linear(width, 3))


class Sentences(nn.Module):
    """Integers in, and an embedding that is tied to the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(self.embedding(tokens)).sum(1)))


class TwoInputs(nn.Module):
    """Two tensors of different shapes, a buffer of each kind, and a parameter that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.unused = nn.Linear(3, 4), nn.Conv1d(2, 4, 3), nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(4)
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(torch.relu(self.left(x)) + self.right(y).amax(2)) * self.scale


# A file does not say whether the first dimension is a batch, and the zeros that a module is traced with on loading do
# not always show that it is not.
class MixedSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens)
        return self.linear(embedded - embedded.mean(0))


class MixedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x / x.norm(dim=0))


KINDS: dict[str, tuple[Callable[[], nn.Module], Example]] = {
    "plain": (plain, (torch.randn(3, 4),)),
    "integers": (Sentences, (torch.tensor([[1, 2, 3], [4, 5, 6]]),)),
    "two inputs": (TwoInputs, (torch.randn(2, 3), torch.randn(2, 2, 5))),
    "no batch": (MixedNorm, (torch.randn(5, 4),)),
    "one dimension, double": (lambda: plain().double(), (torch.randn(4, dtype=torch.float64),)),
    "half": (lambda: plain().bfloat16(), (torch.randn(2, 4, dtype=torch.bfloat16),)),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU()).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        (torch.randn(2, 2, 4, 4),),
    ),
}


@dataclass(frozen=True)
class Kind:
    """A model, another of its architecture, an example of their input, and the first model pruned."""

    model: nn.Module
    other: nn.Module
    example: Example
    small: tamis.Compressed


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    factory, example = KINDS[request.param]
    torch.manual_seed(1)
    model, other = factory(), factory()
    with torch.no_grad():
        for value in other.parameters():
            value.add_(1.0)
    return Kind(model, other, example, tamis.prune(model, 0.6, by="magnitude", biases=True, example=example))


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    return tamis.trace(plain(), torch.zeros(1, 4))


@pytest.fixture(scope="module")
def small(net: tamis.Network) -> tamis.Compressed:
    return tamis.prune(net, 0.5)


def same_tensors(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Equal bit for bit, signs of zeros included."""
    return first.keys() == second.keys() and all(
        first[n].dtype is second[n].dtype
        and torch.equal(first[n], second[n])
        and torch.equal(first[n].signbit(), second[n].signbit())
        for n in first
    )


# -- a module with the small weights -------------------------------------------------------------------------------


def test_apply_to_gives_a_copy(kind: Kind) -> None:
    model, example, small = kind.model, kind.example, kind.small
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    applied = small.apply_to(model)
    assert type(applied) is type(model) and applied is not model and applied.training
    assert same_tensors(model.state_dict(), before)
    assert same_tensors(dict(applied.state_dict()), small.state_dict())
    expected = small.network(*example)
    torch.testing.assert_close(applied.eval()(*example), expected, rtol=1e-5, atol=1e-6)
    assert not {p.data_ptr() for p in applied.parameters()} & {p.data_ptr() for p in small.params.values() if p.numel()}
    pruned = [applied.get_parameter(name)[~mask] for name, mask in small.masks.items()]
    assert sum(len(each) for each in pruned) == small.masks.pruned and not torch.cat(pruned).any()


def test_tied_weights_stay_tied() -> None:
    model = Sentences()
    small = tamis.prune(model, 0.5, "magnitude", example=torch.tensor([[1, 2, 3]]))
    assert "out.weight" not in small.masks and set(small.state_dict()) == set(model.state_dict())
    applied: Any = small.apply_to(model)
    assert applied.out.weight is applied.embedding.weight


def test_apply_to_another_architecture(small: tamis.Compressed) -> None:
    for other, said in ((nn.Linear(4, 5), "Missing key"), (plain(width=6), "size mismatch for 0.weight")):
        with pytest.raises(InvalidParameters, match=f"(?s)does not fit {type(other).__name__}: .*{said}"):
            small.apply_to(other)
    with pytest.raises(InvalidInput, match=r"apply_to needs a torch\.nn\.Module, got Network"):
        small.apply_to(small.network)  # type: ignore[arg-type]


def test_a_model_with_state_that_is_no_tensor(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        calls = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"calls": self.calls}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.calls = state["calls"]

    model = nn.Sequential(Counting(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].calls = 7
    small = tamis.prune(model, 0.5, example=torch.ones(2, 4))
    applied: Any = small.apply_to(model)
    assert applied[0].calls == 7 and torch.equal(applied[0].weight, small.params["0.weight"])
    small.save(tmp_path / "small.tamis")
    again = tamis.load(tmp_path / "small.tamis", model).network
    assert torch.equal(again(torch.ones(2, 4)), small.network(torch.ones(2, 4)))


def test_apply_to_a_model_in_training(small: tamis.Compressed) -> None:
    """Gradients, and the hooks that hold its weights, are its own."""
    model = plain()
    small.masks.hold(model, torch.optim.SGD(model.parameters(), 0.1))
    model(torch.ones(2, 4)).sum().backward()
    applied = small.apply_to(model)
    applied(torch.ones(2, 4)).sum().backward()
    gradient = applied.get_parameter("0.weight").grad
    assert gradient is not None and gradient[~small.masks["0.weight"]].any()


def test_state_dict_is_a_copy(small: tamis.Compressed) -> None:
    small.state_dict()["0.bias"].fill_(9.0)
    assert not (small.params["0.bias"] == 9.0).any()


def test_masks_must_be_true(net: tamis.Network) -> None:
    with pytest.raises(InvalidParameters, match=r"the mask of '0\.weight' prunes entries that are not \+0\.0"):
        tamis.Compressed(net, {"0.weight": torch.zeros(5, 4, dtype=torch.bool)})
    with pytest.raises(InvalidParameters, match="a mask for 'fc', but the network has no such parameter"):
        tamis.Compressed(net, {"fc": torch.zeros(5, 4, dtype=torch.bool)})


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("traced", [False, True], ids=["for a module", "for a network"])
def test_what_is_saved_comes_back(kind: Kind, traced: bool, tmp_path: Path) -> None:
    other, example, small = kind.other, kind.example, kind.small
    path = tmp_path / "small.tamis"
    small.save(path)
    assert path.stat().st_size == small.nbytes
    before = {name: value.clone() for name, value in other.state_dict().items()}
    moved = {name: value + 1 for name, value in small.params.items() if value.is_floating_point()}
    loaded = tamis.load(path, small.network.with_params(moved) if traced else other)
    assert same_tensors(loaded.params, small.params) and same_tensors(loaded.masks, small.masks)
    assert loaded.recipe == small.recipe and loaded.nbytes == small.nbytes
    assert same_tensors(loaded.state_dict(), small.state_dict())
    torch.testing.assert_close(loaded.network(*example), small.network(*example), rtol=1e-5, atol=1e-6)
    assert same_tensors(dict(loaded.apply_to(other).state_dict()), small.state_dict())
    assert same_tensors(dict(other.state_dict()), before), "the module's own weights are left as they are"
    assert tamis.prune(loaded, 1, by="magnitude").masks.pruned == small.masks.pruned + 1
    loaded.save(tmp_path / "again.tamis")
    assert (tmp_path / "again.tamis").read_bytes() == path.read_bytes()


def test_every_setting_of_a_recipe_comes_back(net: tamis.Network, tmp_path: Path) -> None:
    once = tamis.prune(net, 0.2, include=["0", "2.*"], exclude="2.bias", biases=True, halve_final=True, seed=4)
    twice = tamis.prune(once, {"0.weight": 3, "2": 0.5}, by="random", scope="layer", seed=2)
    twice.save(tmp_path / "small.tamis")
    loaded = tamis.load(tmp_path / "small.tamis", net)
    assert loaded.recipe == twice.recipe
    assert loaded.recipe[0]["include"] == ["0", "2.*"] and loaded.recipe[1]["amount"] == {"0.weight": 3, "2": 0.5}


def test_a_network_that_is_whole(net: tamis.Network, tmp_path: Path) -> None:
    whole = tamis.Compressed(net)
    assert whole.masks.total == 0 and whole.recipe == ()
    whole.save(tmp_path / "whole.tamis")
    assert same_tensors(tamis.load(tmp_path / "whole.tamis", plain()).params, net.params)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: nn.Linear(4, 3), "it lacks weight, bias; it also has 0.bias, 0.weight"),
        (lambda: plain(width=6), "0.bias ([5] of torch.float32 in the file, [6] of torch.float32 in the model)"),
        (lambda: plain().double(), "0.bias ([5] of torch.float32 in the file, [5] of torch.float64 in the model)"),
        (lambda: nn.Sequential(*plain(), nn.Linear(3, 1)), "it lacks 3.weight, 3.bias"),
    ],
)
def test_a_model_with_other_parameters(
    small: tamis.Compressed, other: Callable[[], nn.Module], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "small.tamis"
    small.save(path)
    with pytest.raises(InvalidParameters) as raised:
        tamis.load(path, other())
    message = str(raised.value).replace("'", "")
    assert "small.tamis was made for another model" in message and said in message


def test_a_model_with_the_same_parameters_that_computes_something_else(small: tamis.Compressed, tmp_path: Path) -> None:
    path = tmp_path / "small.tamis"
    small.save(path)
    loaded = tamis.load(path, plain(nn.GELU))  # a module is traced only when its graph is needed
    said = r"small\.tamis' was saved from a network that computes something else with the same parameters"
    for _ in range(2):
        with pytest.raises(InvalidParameters, match=said):
            _ = loaded.network
    with pytest.raises(InvalidParameters, match=said):
        tamis.load(path, tamis.trace(plain(nn.GELU), torch.zeros(1, 4)))
    with pytest.raises(InvalidParameters, match=said):
        tamis.load(path, tamis.trace(plain(), torch.zeros(1, 2, 4)))  # one more dimension


def test_what_is_no_file_or_no_model(small: tamis.Compressed, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.tamis"):
        tamis.load(tmp_path / "nowhere.tamis", plain())
    (tmp_path / "text.tamis").write_text("not a network")
    with pytest.raises(CorruptArtifact, match=r"text\.tamis"):
        tamis.load(tmp_path / "text.tamis", plain())
    small.save(tmp_path / "small.tamis")
    with pytest.raises(InvalidInput, match=r"load needs the model that '.*small\.tamis' is for, .* got OrderedDict"):
        tamis.load(tmp_path / "small.tamis", plain().state_dict())  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="missing"):
        small.save(tmp_path / "missing" / "small.tamis")


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"graph": {}, "recipe": []},
        {"graph": {"fingerprint": "x", "inputs": [{"shape": [1, 4], "dtype": "float32"}]}, "recipe": "prune"},
        {"graph": {"fingerprint": "x", "inputs": [{"shape": [1, 4], "dtype": "nn"}]}, "recipe": []},
        {"graph": {"fingerprint": "x", "inputs": [{"shape": [1, -4], "dtype": "float32"}]}, "recipe": []},
        {"graph": {"fingerprint": "x", "inputs": [{"shape": [2**20, 2**20], "dtype": "float32"}]}, "recipe": []},
        {"graph": {"fingerprint": 5, "inputs": []}, "recipe": []},
        {"graph": {"fingerprint": "x", "inputs": [[1, 4]]}, "recipe": [[]]},
    ],
)
def test_a_file_that_describes_itself_wrongly(small: tamis.Compressed, about: dict[str, Any], tmp_path: Path) -> None:
    format.write(tmp_path / "odd.tamis", small.params, {}, about)
    with pytest.raises(CorruptArtifact, match=r"odd\.tamis' does not describe its graph and recipe"):
        tamis.load(tmp_path / "odd.tamis", plain())


def test_a_network_that_mixes_its_first_dimension(tmp_path: Path) -> None:
    """Integers as well; the kind without a batch of the tests above is one of numbers."""
    model, example = MixedSequence(), torch.tensor([1, 2, 3, 4])
    small = tamis.prune(model, 3, "magnitude", example=example)
    assert not small.network.batched
    small.save(tmp_path / "small.tamis")
    loaded = tamis.load(tmp_path / "small.tamis", model)
    assert torch.equal(loaded.network(example), small.network(example))


# -- words ---------------------------------------------------------------------------------------------------------


def test_the_summary_has_exact_counts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 4))
    small = tamis.prune(model, {"0.weight": 1234, "2.weight": 7}, example=torch.zeros(1, 40))
    header, *rows, total, stayed, rest, size = small.summary().splitlines()
    assert header.split() == ["parameter", "weights", "left", "zeros"]
    assert stayed.startswith("stayed float: 54 weights of 0, 2: a bias") and rest.startswith("  ")
    assert [row.split() for row in rows] == [
        ["0.weight", "2,000", "766", "61.7%"],
        ["2.weight", "200", "193", "3.5%"],
    ]
    assert total == "1,241 of 2,200 weights pruned (56.41%) in 2 parameters"
    dense = 4 * (2000 + 50 + 200 + 4)
    small.save(tmp_path / "small.tamis")
    written = (tmp_path / "small.tamis").stat().st_size
    assert size == f"{written:,} bytes in a file, {written / dense:.3f} of the {dense:,} of all parameters"
    assert repr(small) == "Compressed(1,241 of 2,200 weights pruned; 'prune')"


def test_the_summary_of_little(small: tamis.Compressed) -> None:
    whole = tamis.Compressed(small.network).summary()
    assert whole.startswith("0 of 0 weights pruned (0.00%) in 0 parameters")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_a_weight(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 2), nn.Linear(2, 2))
    small = tamis.prune(model, 0.5, "magnitude", example=torch.zeros(1, 3))
    assert small.masks.pruned == 2 and "0.0%" in small.summary()
    small.save(tmp_path / "small.tamis")
    assert same_tensors(tamis.load(tmp_path / "small.tamis", model).params, small.params)


# -- what was loaded stands by itself ---------------------------------------------------------------------------------


def test_what_is_loaded_does_not_change_with_the_module(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tamis.prune(model, 2, example=torch.zeros(1, 3)).save(tmp_path / "small.tamis")
    loaded = tamis.load(tmp_path / "small.tamis", model)
    before = loaded.state_dict()
    model[2].weight = model[0].weight
    assert same_tensors(loaded.state_dict(), before)
    with pytest.raises(TypeError, match="does not support item assignment"):
        loaded.params["0.weight"] = torch.zeros(3, 3)  # type: ignore[index]
    model.double()
    with pytest.raises(InvalidParameters, match=r"small.tamis' (does not fit|was saved from a network)"):
        loaded.network  # noqa: B018


def test_a_module_without_weights_takes_those_of_the_file(small: tamis.Compressed, tmp_path: Path) -> None:
    small.save(tmp_path / "small.tamis")
    with torch.device("meta"):
        empty = plain()
    loaded = tamis.load(tmp_path / "small.tamis", empty)
    assert same_tensors(loaded.params, small.params) and same_tensors(loaded.masks, small.masks)
    assert same_tensors(dict(loaded.apply_to(empty).state_dict()), small.state_dict())
    x = torch.randn(2, 4)
    assert torch.equal(loaded.network(x), small.network(x))


def test_masks_are_copied() -> None:
    net, mask = tamis.trace(nn.Linear(2, 1, bias=False), torch.zeros(1, 2)), torch.tensor([[True, True]])
    small = tamis.Compressed(net, {"weight": mask})
    mask.fill_(False)
    assert small.masks.pruned == 0


@pytest.mark.parametrize(
    "inputs",
    [[{"shape": [1, 2**25], "dtype": "float32"}] * 3, [{"shape": [2**20, 2**20], "dtype": "float32"}]],
    ids=["many", "one"],
)
def test_a_file_cannot_ask_for_inputs_without_end(inputs: Any, small: tamis.Compressed, tmp_path: Path) -> None:
    path = tmp_path / "small.tamis"
    about = {"graph": {"fingerprint": "", "torch": "", "batched": True, "inputs": inputs}, "recipe": []}
    format.write(path, small.params, small.masks, about)
    with pytest.raises(CorruptArtifact, match="asks for inputs of more than 67,108,864 numbers"):
        tamis.load(path, plain())


@pytest.mark.parametrize(
    ("dtype", "refused"),
    [
        ("int64", (InvalidParameters, r"small.tamis' (does not fit|was saved from a network)")),
        ("float8_e5m2", (CorruptArtifact, "does not describe its graph")),
        ("quint8", (CorruptArtifact, "does not describe its graph")),
    ],
)
def test_a_file_that_asks_for_other_inputs_does_not_fit(
    dtype: str, refused: tuple[type[Exception], str], small: tamis.Compressed, tmp_path: Path
) -> None:
    path = tmp_path / "small.tamis"
    inputs = [{"shape": [1, 4], "dtype": dtype}]
    about = {"graph": {"fingerprint": "", "torch": "", "batched": True, "inputs": inputs}, "recipe": []}
    format.write(path, small.params, small.masks, about)
    with pytest.raises(refused[0], match=refused[1]):
        tamis.load(path, plain()).network  # noqa: B018
