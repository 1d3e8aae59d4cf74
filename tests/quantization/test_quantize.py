"""`tamis.quantize` as a whole: what it is given, what it leaves alone, and what its figures say."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from quantization.networks import network
from torch import Tensor, nn

import tamis
from tamis.artifact import Compressed
from tamis.quantization.alphabet import Alphabet
from tamis.quantization.quantizer import METHODS


def quantized(net: Any, data: Any, **settings: Any) -> Compressed:
    return tamis.quantize(net, data, progress=False, **settings)


@cache
def perceptron() -> tuple[tamis.Network, nn.Module, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5)).double()
    data = torch.randn(100, 12, dtype=torch.float64)
    return tamis.trace(module, data[:2]), module, data


def test_include_and_exclude_leave_other_layers_as_they_are() -> None:
    net, _, data = perceptron()
    for which, expected in (
        ({"include": "2"}, {"2.weight"}),
        ({"exclude": "0"}, {"2.weight", "4.weight"}),
        ({"include": ["0.weight", "4"], "exclude": "4.weight"}, {"0.weight"}),
    ):
        small = quantized(net, data, method="gpfq", **which)
        assert set(small.codes) == expected
        others = [name for name in net.params if name not in expected]
        assert all(torch.equal(small.params[name], net.params[name]) for name in others)


def test_a_module_with_an_example_a_network_and_a_compressed_one_are_the_same() -> None:
    net, module, data = perceptron()
    results = [
        quantized(module, data, example=data[:2]),
        quantized(net, data),
        quantized(Compressed(net), data),
    ]
    for other in results[1:]:
        assert all(torch.equal(value, other.params[name]) for name, value in results[0].params.items())
    with pytest.raises(tamis.errors.InvalidInput, match="example of the input of Sequential"):
        quantized(module, data)


def test_calibration_in_every_form(tmp_path: Any) -> None:
    net, _, data = perceptron()
    np.savez(tmp_path / "data.npz", x=data.float().numpy(), y=np.zeros(100, dtype=np.int64))
    rounded = data.float()
    forms = [rounded, rounded.numpy(), (rounded,), str(tmp_path / "data.npz"), tmp_path / "data.npz"]
    forms += [list(rounded.split(20)), [[x, 7] for x in rounded.split(20)], (x for x in rounded.split(20))]
    results = [quantized(net, form, levels=4) for form in forms]
    for other in results[1:]:
        assert all(torch.equal(value, other.params[name]) for name, value in results[0].params.items())


def test_a_weight_that_two_layers_share_is_chosen_where_data_meets_it_first() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 3)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.second(self.first(x).relu()).relu())

    torch.manual_seed(0)
    module, data = Twice().double(), torch.randn(50, 6, dtype=torch.float64)
    small = quantized(module, data, method="gpfq", levels=4, c_alpha=2.0, example=data)
    alone = quantized(nn.Sequential(module.first), data, method="gpfq", levels=4, c_alpha=2.0, example=data)
    assert set(small.codes) == {"first.weight", "last.weight"}
    assert torch.equal(small.params["first.weight"], alone.params["0.weight"])
    state = small.state_dict()
    assert torch.equal(state["first.weight"], state["second.weight"])
    # The last layer was fitted to inputs that the shared weight gives in both of its places.
    copy = small.apply_to(module)
    with torch.no_grad():
        hidden = copy.second(copy.first(data).relu()).relu()
        wanted = module.second(module.first(data).relu()).relu() @ module.last.weight.T
        error = float((wanted - hidden @ copy.last.weight.T).norm() / wanted.norm())
    assert small.recipe[-1]["layers"]["last.weight"]["error"] == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize("settings", [{"method": "gpfq"}, {"method": "optq"}, {"method": "optq", "biases": True}])
@pytest.mark.parametrize("name", ["perceptron", "resnet", pytest.param("unet", marks=pytest.mark.slow)])
def test_the_errors_in_the_recipe_are_those_of_the_network_that_comes_out(name: str, settings: dict[str, Any]) -> None:
    """‖Yw − Ỹq‖ / ‖Yw‖ by hooks on the user's module; where a batch-norm follows, it takes up the mean."""
    net, module, data = perceptron() if name == "perceptron" else network(name)
    small = quantized(net, data, levels=4, **settings)
    figures = small.recipe[-1]["layers"]
    copy = small.apply_to(module)
    layers = [key.removesuffix(".weight") for key in figures]
    outputs: dict[tuple[int, str], Tensor] = {}
    for place, each in enumerate((module, copy)):
        hooks = [
            each.get_submodule(key).register_forward_hook(
                lambda layer, _, output, place=place, key=key: outputs.__setitem__((place, key), output.detach())
            )
            for key in layers
        ]
        each(data)
        for hook in hooks:
            hook.remove()
    for key in layers:
        wanted, got = outputs[0, key].double(), outputs[1, key].double()
        axes = [axis for axis in range(wanted.dim()) if axis != (1 if wanted.dim() == 4 else wanted.dim() - 1)]
        bias = module.get_submodule(key).bias
        plain = wanted if bias is None else wanted - bias.detach().reshape(-1, *[1] * (wanted.dim() // 4 * 2))
        difference = wanted - got
        if settings["method"] == "optq" and bias is None:
            difference = difference - difference.mean(axes, keepdim=True)
        expected = float(difference.norm() / plain.norm())
        assert figures[f"{key}.weight"]["error"] == pytest.approx(expected, rel=2e-3)
        assert figures[f"{key}.weight"]["zeros"] == float((small.params[f"{key}.weight"] == 0).double().mean())


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *(("gpfq", name) for name in ("resnet", "cnn1d")),
        *(("optq", name) for name in ("perceptron", "resnet")),
        ("msq", "perceptron"),
        pytest.param("gpfq", "perceptron", marks=pytest.mark.slow),
        *(pytest.param("gpfq", n, marks=pytest.mark.slow) for n in ("densenet", "mobilenet", "unet")),
        pytest.param("optq", "mobilenet", marks=pytest.mark.slow),
        pytest.param("optq", "unet", marks=pytest.mark.slow),
        pytest.param("msq", "resnet", marks=pytest.mark.slow),
    ],
)
def test_bias_correction_keeps_the_mean_of_every_output(name: str, method: Any) -> None:
    """Of layers with a bias or with a batch-norm after them: what leaves the batch-norm has the original mean."""
    net, module, data = perceptron() if name == "perceptron" else network(name)
    small = quantized(net, data, levels=3, method=method, bias_correction=True)
    copy = small.apply_to(module)
    readers = [
        key
        for key, layer in module.named_modules()
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) or getattr(layer, "bias", None) is not None
    ]
    checked = 0
    for key in readers:
        before, after = (_outputs(each, key, data) for each in (module, copy))
        axes = [axis for axis in range(before.dim()) if axis != (1 if before.dim() > 2 else before.dim() - 1)]
        is_layer = not isinstance(module.get_submodule(key), (nn.BatchNorm1d, nn.BatchNorm2d))
        moved = is_layer or not torch.equal(*(each.get_submodule(key).running_mean for each in (module, copy)))
        if moved:
            spread = before.std() + 1e-9
            assert ((before - after).mean(axes).abs() < 1e-3 * spread).all(), key
            checked += 1
    assert checked >= 3


def _outputs(module: nn.Module, key: str, data: Tensor) -> Tensor:
    seen: list[Tensor] = []
    hook = module.get_submodule(key).register_forward_hook(lambda layer, args, output: seen.append(output.detach()))
    module(data)
    hook.remove()
    return seen[0].double()


def test_prune_repair_and_quantize_in_one_call_beat_quantizing_the_pruned_network() -> None:
    net, _, data = perceptron()
    fresh = torch.randn(200, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    wanted = net(fresh).detach()
    pruned = tamis.prune(net, 0.5, by="magnitude")
    for method in ("gpfq", "optq"):
        chained = quantized(net, data, levels=8, method=method, pruned=pruned)
        plain = quantized(pruned, data, levels=8, method=method)
        error, without = (float((each.network(fresh).detach() - wanted).norm()) for each in (chained, plain))
        assert error < 0.8 * without
        assert all(torch.equal(chained.masks[name], mask) for name, mask in pruned.masks.items())


def test_the_pruned_network_must_be_the_same_one() -> None:
    net, _, data = perceptron()
    other = tamis.trace(nn.Sequential(nn.Linear(12, 5)).double(), data[:2])
    with pytest.raises(tamis.errors.InvalidInput, match=r"quantize needs .* same graph.*made from the first"):
        quantized(net, data, pruned=Compressed(other))
    with pytest.raises(tamis.errors.InvalidInput, match="pruned must be a Compressed"):
        quantized(net, data, pruned=net)


def test_pruned_biases_stay_zero_and_the_error_is_relative_to_the_original() -> None:
    net, module, data = perceptron()
    pruned = tamis.prune(net, 0.4, by="magnitude", biases=True)
    assert not pruned.masks["0.bias"].all()
    small = quantized(net, data, levels=8, pruned=pruned)
    assert all(not small.params[name][~mask].any() for name, mask in pruned.masks.items())
    wanted, got = net(data).detach(), small.network(data).detach()
    error = float((wanted - got).norm() / (wanted - module[4].bias.detach()).norm())
    assert small.recipe[-1]["layers"]["4.weight"]["error"] == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize("method", ["gpfq", "msq", "optq"])
def test_quantizing_again(method: Any) -> None:
    net, _, data = perceptron()
    once = quantized(net, data, levels=16, method=method)
    twice = quantized(once, data, levels=3, method=method)
    assert [step["step"] for step in twice.recipe] == ["quantize", "quantize"]
    assert all(len(codes.levels) == 3 for codes in twice.codes.values())
    assert all(torch.equal(twice.params[name], codes.values()) for name, codes in twice.codes.items())
    part = quantized(once, data, levels=3, method=method, include="4", bias_correction=False)
    assert {name: len(codes.levels) for name, codes in part.codes.items()} == {
        "0.weight": 16,
        "2.weight": 16,
        "4.weight": 3,
    }


def test_later_layers_make_up_for_earlier_ones() -> None:
    net, _, data = perceptron()
    wanted = net(data).detach()
    results = [quantized(net, data, levels=3, method=method) for method in ("msq", "gpfq", "optq")]
    errors = [float((each.network(data).detach() - wanted).norm()) for each in results]
    assert errors == sorted(errors, reverse=True)


def test_given_levels_and_alphabets() -> None:
    net, _, data = perceptron()
    small = quantized(net, data, levels=[-0.2, 0.05, 0.3])
    assert all(set(value.unique().tolist()) <= {-0.2, 0.05, 0.3} for n, value in small.params.items() if "weight" in n)
    small = quantized(net, data, levels=Alphabet((-1.0, 0.0, 0.5), "max"), c_alpha=1.0, method="msq")
    for name, codes in small.codes.items():
        assert torch.equal(codes.scales[:, 0], net.params[name].detach().abs().amax(1))
        distance = (net.params[name].detach()[..., None] - codes.levels * codes.scales[..., None]).abs()
        assert torch.equal(codes.indices.long(), distance.argmin(2))


@pytest.mark.parametrize(("per", "conv"), [("layer", "joint"), ("channel", "joint"), ("channel", "per_channel")])
@pytest.mark.parametrize(
    "name", ["resnet", "gcn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("unet", "mobilenet", "vit"))]
)
def test_msq_is_the_nearest_level_of_every_weight(name: str, per: Any, conv: Any) -> None:
    net, _, data = network(name)
    small = quantized(net, data[:2], levels=4, method="msq", per=per, conv=conv, c_alpha=2.0)
    for key, codes in small.codes.items():
        weight = net.params[key].detach()
        distance = torch.stack([(weight - _spread(level * codes.scales, weight)).abs() for level in codes.levels])
        own = distance.gather(0, codes.indices.long()[None])[0]
        assert (own <= distance.amin(0) + 1e-7).all()


def _spread(values: Tensor, weight: Tensor) -> Tensor:
    for axis, length in enumerate(weight.shape):
        values = values.repeat_interleave(length // values.shape[axis], axis)
    return values


def test_wide_matrix_products_with_a_parameter() -> None:
    """x @ W, and addmm: weights that stand the other way round."""

    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.bias = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8))
            self.second = nn.Parameter(torch.randn(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(self.bias, x, self.first).relu() @ self.second

    torch.manual_seed(0)
    module, data = Products().double(), torch.randn(60, 6, dtype=torch.float64)
    linear = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)).double()
    state = {"0.weight": module.first.T, "0.bias": module.bias, "2.weight": module.second.T}
    linear.load_state_dict({name: value.detach() for name, value in state.items()})
    nets = [tamis.trace(each, data) for each in (module, linear)]
    for settings in (
        {"method": "gpfq", "biases": True},
        {"method": "optq"},
        {"method": "msq", "radius": "least_squares"},
    ):
        one, other = (quantized(net, data, **settings) for net in nets)  # type: ignore[arg-type]
        for name, key in {"first": "0.weight", "second": "2.weight", "bias": "0.bias"}.items():
            expected = other.params[key].T if key != "0.bias" else other.params[key]
            assert torch.allclose(one.params[name], expected, atol=1e-12)


def test_in_place_operations_leave_the_calibration_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    data = torch.randn(20, 5)
    before = data.clone()
    quantized(module, data, example=data[:2].clone())
    assert torch.equal(data, before)


def test_inputs_far_from_zero() -> None:
    """A temperature in kelvins, say: float32 sums must not lose what varies."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(600, 8))
    data = 1000 + torch.randn(1500, 600)
    net = tamis.trace(module, data[:2])
    small = quantized(net, data, levels=16)
    weight, q = module[0].weight.detach().double(), small.params["0.weight"].double()
    centred = (data - 1000).double()
    centred -= centred.mean(0)
    assert (centred @ (weight - q).T).norm() < 0.2 * (centred @ weight.T).norm()


@pytest.mark.parametrize("method", ["gpfq", "optq"])
def test_features_that_do_not_vary_keep_weights_near_theirs(method: Any) -> None:
    """Where a bias follows the means, a constant input says nothing about its weight; its scale may move, though."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(30, 8)).double()
    net = tamis.trace(module, torch.zeros(2, 30, dtype=torch.float64))
    weight = module[0].weight.detach()
    for _ in range(5):
        data = torch.randn(100, 30, dtype=torch.float64)
        data[:, :5] = 7 * torch.rand(5, dtype=torch.float64).sqrt()
        codes = quantized(net, data, levels=16, method=method, bias_correction=True).codes["0.weight"]
        nearest = (weight[..., None] - codes.levels * codes.scales[..., None]).abs().argmin(2)
        assert (codes.indices.long() - nearest)[:, :5].abs().max() <= 1


def test_summary_and_figures_of_the_recipe() -> None:
    net, _, data = perceptron()
    small = quantized(net, data, levels=3)
    step = small.recipe[-1]
    assert step["step"] == "quantize" and step["method"] == "optq" and step["levels"] == [-1.0, 0.0, 1.0]
    assert list(step["layers"]) == ["0.weight", "2.weight", "4.weight"]
    assert "quantize" in small.summary()


# -- biases and means that are not the original's -------------------------------------------------------------------


@cache
def biased_layers() -> tuple[tamis.Network, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    return tamis.trace(module, torch.zeros(1, 20)), torch.randn(400, 20) + 3


@pytest.mark.parametrize("method", METHODS)
def test_weights_make_up_for_biases_that_are_pruned(method: Any) -> None:
    """As in repair, with so many levels that rounding hardly matters."""
    net, data = biased_layers()
    pruned = tamis.prune(net, {"0.bias": 0.9, "0.weight": 0.2}, by="magnitude", biases=True)
    small = tamis.quantize(net, data, levels=256, method=method, pruned=pruned, progress=False)
    repaired = tamis.repair(net, pruned, data, progress=False)
    errors = [each.recipe[-1]["layers"]["0.weight"]["error"] for each in (small, repaired)]
    assert errors[0] < 1.2 * errors[1] + 0.01


@pytest.mark.parametrize("method", METHODS)
def test_biases_that_an_earlier_step_moved_do_not_stay_so(method: Any) -> None:
    """They were fitted to weights that are no more."""
    net, data = biased_layers()
    operated = tamis.prune(net, 0.5, by="obs", calibration=data + 10, progress=False)
    masks = tamis.Compressed(net).pruned(operated.masks, {"step": "prune"})
    after, afresh = (
        tamis.quantize(net, data + 10, levels=16, method=method, pruned=pruned, progress=False)
        for pruned in (operated, masks)
    )
    errors = [each.recipe[-1]["layers"]["2.weight"]["error"] for each in (after, afresh)]
    assert errors[0] < 1.5 * errors[1]


def test_a_bias_that_two_layers_share_is_left_in_floats() -> None:
    _, data = biased_layers()
    module = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
    module[2].bias = module[0].bias
    net = tamis.trace(module, torch.zeros(1, 20))
    small = tamis.quantize(net, data, biases=True, progress=False)
    assert list(small.codes) == ["0.weight", "2.weight"]
    assert torch.equal(small.params["0.bias"], net.params["0.bias"])


def test_a_drifted_layer_whose_inputs_are_far_from_zero() -> None:
    """The drift has a mean near zero, and is multiplied with what has not."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
    module[0].bias.data += 100
    small = tamis.quantize(tamis.trace(module, torch.zeros(1, 64)), torch.randn(1000, 64), levels=4, progress=False)
    assert small.recipe[-1]["layers"]["2.weight"]["error"] < 0.01


def test_offsets_of_single_features_do_not_drown_what_varies() -> None:
    torch.manual_seed(0)
    data = torch.randn(1500, 512)
    signs = torch.randint(0, 2, (512,)) * 2 - 1.0
    module = nn.Linear(512, 64)
    net = tamis.trace(module, torch.zeros(1, 512))

    def error(inputs: Tensor) -> float:
        small = tamis.quantize(net, inputs, levels=4, progress=False)
        difference = (inputs - inputs.mean(0)) @ (small.params["weight"] - net.params["weight"]).T
        return float(difference.norm() / ((inputs - inputs.mean(0)) @ net.params["weight"].T).norm())

    assert error(data + 700 * signs) < 1.1 * error(data)


def test_patterns_may_be_a_generator() -> None:
    net, data = biased_layers()
    small = tamis.quantize(net, data, exclude=(name for name in ["2"]), progress=False)
    assert list(small.codes) == ["0.weight"] and small.recipe[-1]["exclude"] == ["2"]


@pytest.mark.parametrize("method", ["optq", "gpfq"])
@pytest.mark.parametrize("conv", ["joint", "per_channel"])
def test_a_pruned_bias_is_made_up_for_once_not_for_each_input_channel(method: str, conv: str) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 2, 1)
    layer.bias.data = torch.tensor([3.0, -3.0])
    inputs = torch.rand(40, 4, 5, 5) + 0.5
    net = tamis.trace(layer, inputs[:2])
    small = tamis.prune(net, {"bias": 1.0}, by="magnitude", biases=True)
    options = {"levels": 255, "method": method, "conv": conv, "bias_correction": False, "progress": False}
    made = tamis.quantize(net, inputs, pruned=small, **options).network(inputs)
    alone = tamis.quantize(small, inputs, **options).network(inputs)
    expected = net(inputs)
    assert (made - expected).norm() < 0.5 * (alone - expected).norm()
