"""Extensions written outside tamis can be checked here against the contracts that its own parts keep.

Each function raises an `AssertionError` that says what does not hold, or one of `torch.testing` with the numbers that
differ; where nothing is raised, all of it holds. They need no test runner:

    from tamis.testing import check_op

    def test_running_sum() -> None:
        check_op(RunningSum(), model, example)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tamis.artifact import Codes, Compressed
from tamis.artifact.encodings import Decoded, Encoded, Encoding
from tamis.bounds import box_deviation
from tamis.errors import CorruptArtifact
from tamis.graph import Network, fold_batch_norm, normalize, rescale, tensor_bytes, trace
from tamis.graph.ops import Call, Capability, Op, capability, describe
from tamis.kronecker import BACKENDS, Backend, Pattern, multiply
from tamis.paths import lifting, path_costs, path_metric, path_norm, path_norms, product_norm
from tamis.pruning import Criterion, criterion_of, prune
from tamis.quantization import Quantizer, quantize

__all__ = ["check_criterion", "check_encoding", "check_kernel", "check_op", "check_quantizer"]

CLOSE = 1e-9  # how far two computations of one number may be apart, relative and absolute


# -- operations ----------------------------------------------------------------------------------------------------


def check_op(op: Op, model: nn.Module | Network, example: Tensor) -> None:
    """Check that an operation is what its `Op` says it is, in one small model that uses it.

    Bring a model with parameters before the operation, of both signs, and arguments that are not the defaults: those
    hide mistakes. Paths are enumerated, so that a few dozen neurons are enough.

    Args:
        op: the description, registered.
        model: a model that calls one of its targets, or its network, in float64.
        example: a batch of two inputs for it.

    Raises:
        AssertionError: something that the description says is not so.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)).double()
        >>> net = trace(model, torch.randn(2, 3, dtype=torch.float64))
        >>> relu = next(describe(node) for node in net.nodes if "relu" in node.op)
        >>> check_op(relu, net, torch.randn(2, 3, dtype=torch.float64))
    """
    net = model if isinstance(model, Network) else trace(model, example)
    mine = [node for node in net.nodes if describe(node) is op]
    met = ", ".join(dict.fromkeys(node.op for node in net.nodes))
    assert mine, f"no operation of the model is described by {type(op).__name__}: it has {met}; is it registered?"
    assert any(node.name in net.carries_data for node in mine), f"no data reaches {type(op).__name__} in the model"
    if not isinstance(model, Network):
        with torch.no_grad():
            torch.testing.assert_close(net(example), model.eval()(example), rtol=1e-12, atol=1e-12)
    # The checks need all of the model to admit the theory, not the operation alone.
    least = min(capability(net, node) for node in net.data_nodes)
    if least >= Capability.LIPSCHITZ:
        _check_same_function(net, example)
        _check_metric(net, example)
    if least >= Capability.HOMOGENEOUS:
        _check_norms(net, example)
        _check_costs(net)
    if all(describe(node).interval_rule(_without_values(net, node)) for node in fold_batch_norm(net).data_nodes):
        _check_boxes(net, example)


def _without_values(net: Network, node: object) -> Call:
    return Call(node, lambda name: None, net.carries_data)  # type: ignore[arg-type]


def _take_one_sample(net: Network, x: Tensor) -> Tensor:
    return x[:1] if net.batched else x


def _check_same_function(net: Network, x: Tensor) -> None:
    """Check that folding, rescaling and normalizing change no output (`ties`)."""
    outputs = net(x)
    for fold in (True, False):
        torch.testing.assert_close(fold_batch_norm(net, fold)(x), outputs, rtol=CLOSE, atol=CLOSE)
    for same in (rescale(net, seed=1), normalize(net), normalize(net, q=2)):
        torch.testing.assert_close(same(x), outputs, rtol=CLOSE, atol=CLOSE)


def _check_metric(net: Network, x: Tensor) -> None:
    """Check that the path-metric is at least the distance of outputs (`magnitude`), near and far."""
    generator = torch.Generator().manual_seed(7)
    for spread in (0.01, 0.5, 5.0):
        other = _move_params(net, spread, generator)
        distance = (net(x) - other(x)).abs()
        distance = distance.flatten(1).sum(1) if net.batched else distance.sum()
        bound = torch.as_tensor(path_metric(net, other, x))
        assert bool((distance <= bound * (1 + 1e-12)).all()), (
            f"the path-metric {bound.tolist()} is below the distance of outputs {distance.tolist()}: "
            "`magnitude` is too small"
        )


def _move_params(net: Network, spread: float, generator: torch.Generator) -> Network:
    noise = {n: torch.randn(v.shape, generator=generator) for n, v in net.params.items() if n in net.trainable}
    return net.with_params({name: net.params[name] + spread * change for name, change in noise.items()})


def _check_norms(net: Network, x: Tensor) -> None:
    """Check path-norms (`magnitude`) and product norms (`reach`) against the enumerated paths."""
    x = _take_one_sample(net, x)
    # Powers other than 1 show a `magnitude` that raises |θ|^q once more, or forgets a number of the call.
    for q in (0.5, 1, 2, 4):
        lifted = lifting(net, x, q=q)
        torch.testing.assert_close(lifted.realization(x), net(x).flatten(), rtol=CLOSE, atol=CLOSE)
        norms = path_norms(net, q)  # one pass for all r, which only says how outputs are put together
        for r in (1, 2, math.inf):
            _assert_near(norms.mixed(r), lifted.norm(q, r), f"the path-norm of q = {q}, r = {r} (`magnitude`)")
            _assert_near(
                product_norm(net, q, r), lifted.product_norm(r), f"the product norm of q = {q}, r = {r} (`reach`)"
            )


def _check_costs(net: Network) -> None:
    """Check that the cost of a coordinate is what the path-norm loses without it (`multipliers`, `addends`)."""
    costs, norm = path_costs(net), path_norm(net)
    # A few entries of each parameter will do: every one takes a path-norm of its own.
    for name, values in costs.values.items():
        for i in range(0, values.numel(), max(1, values.numel() // 3)):
            without = net.params[name].clone()
            without.view(-1)[i] = 0
            lost = norm - path_norm(net.with_params({name: without}))
            _assert_near(float(values.view(-1)[i]), lost, f"the cost of {name}[{i}]", slack=1e-9 * norm)


def _check_boxes(net: Network, x: Tensor) -> None:
    """Check that no point of a box leaves the bound over it (`interval_rule`), and that equal networks have none."""
    generator = torch.Generator().manual_seed(3)
    x, other = _take_one_sample(net, x), _move_params(net, 0.2, generator)
    (bound,) = box_deviation(net, other, x, radius=0.1)[:1]
    for _ in range(8):
        point = x + 0.1 * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1)
        distance = float((net(point) - other(point)).abs().max())
        assert distance <= bound.value * (1 + 1e-12), (
            f"outputs are {distance} apart in a box where the bound says {bound.value}: `interval_rule` is not right"
        )
    assert box_deviation(net, net, x, radius=0.1)[0].value == 0, "a network differs from itself in a box"


def _assert_near(found: float, wanted: float, what: str, slack: float = 0.0) -> None:
    near = math.isclose(found, wanted, rel_tol=1e-9, abs_tol=max(slack, 1e-12))
    assert near, f"{what} is {found}, and {wanted} from the definition"


# -- criteria and quantizers ---------------------------------------------------------------------------------------


def _make_small_convnet() -> tuple[Network, nn.Module, Tensor]:
    """Return a network with every kind of layer, its module, and data for it."""
    generator = torch.Generator().manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 2, groups=2, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 2, 2, stride=2),
        nn.Flatten(),
        nn.Linear(128, 5),
    ).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            width = max(1, parameter[0].numel()) if parameter.dim() > 1 else 4
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(width))
    data = torch.randn(30, 2, 5, 5, generator=generator)
    return trace(module, data[:2]), module, data


def check_criterion(criterion: Any, net: Network | None = None) -> None:
    """Check that a criterion scores every weight, and that `tamis.prune` can prune by it.

    Args:
        criterion: the function (`tamis.pruning.Criterion`), or the name of one that ships.
        net: a network to prune; a small convolutional one if none is given.

    Raises:
        AssertionError: scores do not fit, counts are not exact, or the same seed gives other masks.

    Example:
        >>> check_criterion("magnitude")
    """
    net = _make_small_convnet()[0] if net is None else net
    everything = prune(net, 0, by=criterion).masks
    names, total = list(everything), everything.total
    _check_scores(criterion_of(criterion), net, names)
    for amount in (0, 1, total // 3, 0.5, 0.8, 1.0):
        masks = prune(net, amount, by=criterion).masks
        wanted = amount if isinstance(amount, int) else round(amount * total)
        assert (masks.total, masks.pruned) == (total, wanted), (
            f"prune(amount={amount}) pruned {masks.pruned} of {masks.total} weights, not {wanted} of {total}"
        )
    scopes: tuple[Literal["global", "layer"], ...] = ("global", "layer")
    for scope in scopes:
        once = prune(net, 0.5, by=criterion, scope=scope, seed=1)
        twice = prune(once, 0.5, by=criterion, scope=scope, seed=2)
        assert twice.masks.pruned > once.masks.pruned, f"pruning again (scope={scope!r}) prunes nothing more"
        back = [name for name in once.masks if bool((twice.masks[name] & ~once.masks[name]).any())]
        assert not back, f"pruning again (scope={scope!r}) brought back weights of {back[0]}"
    first, second = (prune(net, 0.6, by=criterion, seed=7).masks for _ in range(2))
    for name in first:
        assert torch.equal(first[name], second[name]), f"the same seed gives other masks of {name}"


def _check_scores(criterion: Criterion, net: Network, names: Sequence[str]) -> None:
    shown: list[dict[str, Tensor]] = []
    # Pruning sweeps over the scores two or three times, so that a second sweep must show the same ones.
    sweep = criterion(net, names, 0)
    for _ in range(2):
        scores: dict[str, Tensor] = {}
        sweep(lambda name, value, into=scores: into.__setitem__(name, value.clone()))  # type: ignore[misc]
        shown.append(scores)
    assert sorted(shown[0]) == sorted(names), f"scored {sorted(shown[0])}, asked for {sorted(names)}"
    for name, value in shown[0].items():
        assert value.shape == net.params[name].shape, f"scores of {name} have shape {tuple(value.shape)}"
        assert value.is_floating_point() and not value.isnan().any(), f"scores of {name} are not all numbers"
        assert torch.equal(value, shown[1][name]), f"a second sweep shows other scores of {name}"


def check_quantizer(method: str | Quantizer) -> None:
    """Check what `tamis.quantize` promises of every method.

    Weights end on their levels, and stay where they are on them already; nothing that was passed changes, and the same
    call gives the same; how data is cut into batches, and whether activations go to files, does not matter; what is
    pruned stays zero; odd data does no harm; more levels are nearer.

    Args:
        method: the quantizer, or the name of one that ships.

    Raises:
        AssertionError: one of these does not hold.

    Example:
        >>> check_quantizer("msq")
    """
    net, module, data = _make_small_convnet()

    def run(inputs: object = data, start: object = net, **settings: object) -> Compressed:
        return quantize(start, inputs, method=method, progress=False, **settings)  # type: ignore[arg-type]

    _check_repeatable(run, net, module, data)
    _check_batches(run, data)
    _check_levels_stay(run, net)
    _check_odd_data(run, data)
    for levels in (3, [-0.3, 0.1, 0.2]):
        pruned = prune(net, 0.6, by="magnitude")
        small = run(start=pruned, levels=levels)
        _assert_on_levels(small)
        for name, mask in pruned.masks.items():
            assert not small.params[name][~mask].any(), f"pruned weights of {name} are not zero any more"
    outputs = net(data).detach()
    errors = [float((run(bits=bits).network(data) - outputs).detach().norm()) for bits in (1, 3, 6, 12)]
    assert errors == sorted(errors, reverse=True), f"outputs are not nearer with more bits: {errors} for 1, 3, 6, 12"
    assert errors[-1] < 5e-3 * float(outputs.norm()), f"with 12 bits outputs are still {errors[-1]} off"


def _check_repeatable(run: Callable[..., Compressed], net: Network, module: nn.Module, data: Tensor) -> None:
    before = {name: value.clone() for name, value in net.params.items()}
    state = {name: value.clone() for name, value in module.state_dict().items()}
    inputs, levels = data.clone(), [-0.4, 0.0, 0.3]
    one, other = run(inputs, levels=levels), run(inputs, levels=levels)
    _assert_same(one, other, "the same call gives something else")
    assert one.recipe == other.recipe, "the same call tells another recipe"
    assert torch.equal(inputs, data) and levels == [-0.4, 0.0, 0.3], "it changed the data or levels it was given"
    for name, value in net.params.items():
        assert torch.equal(value, before[name]), f"it changed the network's {name}"
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name]), f"it changed the model's {name}"


def _check_batches(run: Callable[..., Compressed], data: Tensor) -> None:
    whole = run(levels=3, c_alpha=2.0)
    for size in (1, 7):
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, torch.zeros(30)), batch_size=size)
        small = run(loader, levels=3, c_alpha=2.0)
        for name in whole.codes:
            same = torch.equal(whole.codes[name].indices, small.codes[name].indices)
            assert same, f"{name} has other levels where data comes in batches of {size}"
        for name, value in whole.params.items():  # batch sums in float32 move the means by a last bit
            assert torch.allclose(value, small.params[name], atol=1e-5), f"{name} depends on the size of batches"
    for c_alpha in (None, 2.0):
        stored = run(levels=3, c_alpha=c_alpha, activation_budget=0)
        _assert_same(run(levels=3, c_alpha=c_alpha), stored, "activations in files give something else")


def _check_levels_stay(run: Callable[..., Compressed], net: Network) -> None:
    levels, draw = [-0.5, -0.125, 0.0, 0.25], torch.Generator().manual_seed(1)
    choices = {
        name: torch.tensor(levels)[torch.randint(4, value.shape, generator=draw)]
        for name, value in net.params.items()
        if value.dim() > 1
    }
    for per in ("layer", "channel"):
        for how in ({}, {"order": "norm"}, {"conv": "per_channel"}, {"bias_correction": True}):
            small = run(start=net.with_params(choices), levels=levels, per=per, **how)
            assert set(small.codes) == set(choices), f"quantized {sorted(small.codes)}, not {sorted(choices)}"
            for name, value in net.params.items():
                if name in choices:
                    assert torch.equal(small.params[name], choices[name]), f"{name} left its levels ({per=}, {how})"
                else:
                    assert torch.allclose(small.params[name], value, atol=1e-6), f"{name} changed ({per=}, {how})"
            assert all(each["error"] < 1e-5 for each in small.recipe[-1]["layers"].values()), f"errors ({per=}, {how})"


def _check_odd_data(run: Callable[..., Compressed], data: Tensor) -> None:
    odd = {
        "zeros": torch.zeros_like(data),
        "one sample": data[:1],
        "constant": data[:1].expand_as(data),
        "tiny": data * 1e-18,
        "huge": data * 1e15,
    }
    for kind, inputs in odd.items():
        small = run(inputs, levels=4)
        _assert_on_levels(small)
        assert all(value.isfinite().all() for value in small.params.values()), f"weights are not finite after {kind}"


def _assert_on_levels(small: Compressed) -> None:
    for name, codes in small.codes.items():
        assert codes.indices.shape == small.params[name].shape, f"codes of {name} have shape {codes.indices.shape}"
        assert torch.equal(small.params[name], codes.values(small.masks.get(name))), f"{name} is not on its levels"


def _assert_same(one: Compressed, other: Compressed, what: str) -> None:
    assert set(one.codes) == set(other.codes), f"{what}: codes of {sorted(one.codes)} and {sorted(other.codes)}"
    for name, codes in one.codes.items():
        assert torch.equal(codes.indices, other.codes[name].indices), f"{what}: the codes of {name}"
    for name, value in one.params.items():
        assert torch.equal(value, other.params[name]), f"{what}: {name}"


# -- encodings -----------------------------------------------------------------------------------------------------


def check_encoding(encoding: Encoding, specimens: Iterable[Decoded], others: Iterable[Decoded] = ()) -> None:
    """Check that an encoding gives back every bit, and refuses what does not fit.

    Args:
        encoding: the encoding.
        specimens: tensors of two dimensions that it accepts, of each kind that it treats in its own way.
        others: any tensors, which it may refuse to encode but must not change.

    Raises:
        AssertionError: bits are lost, parts are not as files take them, or what was spoilt is decoded all the same.

    Example:
        >>> from tamis.artifact.encodings import ENCODINGS
        >>> check_encoding(ENCODINGS["dense"], [Decoded(torch.tensor([[1.0, 1.0], [2.0, 2.0]]))])
    """
    count = 0
    for content in specimens:
        count += 1
        stored = encoding.encode(content)
        assert stored is not None, f"{encoding.name} does not accept its specimen of {tuple(content.tensor.shape)}"
        _check_parts(encoding, stored)
        _check_round_trip(encoding, content, stored)
        _check_refusals(encoding, content, stored)
        _check_own_memory(encoding, content, stored)
    assert count, f"bring a tensor that {encoding.name} accepts"
    for content in others:
        stored = encoding.encode(content)
        if stored is not None:
            _check_parts(encoding, stored)
            _check_round_trip(encoding, content, stored)


def _check_parts(encoding: Encoding, stored: Encoded) -> None:
    for name, part in stored.parts.items():
        plain = name.isascii() and name.isalpha() and name.islower()
        assert plain, f"{encoding.name} has a part '{name}': names of parts are letters a to z"
        assert part.is_contiguous(), f"the part '{name}' of {encoding.name} is not contiguous"
    taken = {"name", "parts", "encoding", "shape", "dtype"} & set(stored.parameters)
    assert not taken, f"{encoding.name} has the parameters {sorted(taken)}, which files use themselves"
    held = sum(part.numel() * part.element_size() for part in stored.parts.values())
    assert stored.nbytes == held, f"{encoding.name} says {stored.nbytes} bytes where its parts have {held}"


def _decode(encoding: Encoding, stored: Encoded, like: Decoded) -> Decoded:
    return encoding.decode(stored, tuple(like.tensor.shape), like.tensor.dtype)


def _check_round_trip(encoding: Encoding, content: Decoded, stored: Encoded) -> None:
    result = _decode(encoding, stored, content)
    what = f"{encoding.name} with {content.tensor.dtype} of shape {tuple(content.tensor.shape)}"
    assert result.tensor.is_contiguous(), f"{what} decodes to a tensor that is not contiguous"
    assert _have_same_bits(result.tensor, content.tensor), f"{what} does not give back every bit"
    assert _have_same_bits(result.mask, content.mask), f"{what} does not give back the mask"
    assert _have_same_codes(result.codes, content.codes), f"{what} does not give back the codes"


def _have_same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype is other.dtype and one.shape == other.shape and torch.equal(tensor_bytes(one), tensor_bytes(other))


def _have_same_codes(one: Codes | None, other: Codes | None) -> bool:
    if one is None or other is None:
        return one is other
    parts = ((one.indices, other.indices), (one.levels, other.levels), (one.scales, other.scales))
    return all(_have_same_bits(mine, theirs) for mine, theirs in parts)


def _check_own_memory(encoding: Encoding, content: Decoded, stored: Encoded) -> None:
    """Check that what comes back does not change with the parts it was read from."""
    # Copies are spoilt: parts may share memory with the specimen, and specimens with one another.
    stored = Encoded({name: part.clone() for name, part in stored.parts.items()}, stored.parameters)
    result = _decode(encoding, stored, content)
    codes = [] if result.codes is None else [result.codes.indices, result.codes.levels, result.codes.scales]
    results = [value for value in (result.tensor, result.mask, *codes) if value is not None]
    before = [value.clone() for value in results]
    for part in stored.parts.values():
        part.copy_(torch.ones_like(part))
    for value, old in zip(results, before, strict=True):
        assert _have_same_bits(value, old), f"what {encoding.name} decodes shares memory with the parts"


def _check_refusals(encoding: Encoding, content: Decoded, stored: Encoded) -> None:
    for name in stored.parts:
        for why, wrong in _spoil(stored, name).items():
            _assert_refused(encoding, wrong, tuple(content.tensor.shape), content.tensor.dtype, f"'{name}' {why}")
    (rows, columns), own = content.tensor.shape, content.tensor.dtype
    other = torch.int32 if own.is_floating_point else torch.float64
    for shape, dtype in (((rows, columns - 1), own), ((rows, columns, 9), own), ((rows, columns), other)):
        _assert_refused(encoding, stored, shape, dtype, f"decoded to {dtype} of shape {shape}")


def _assert_refused(encoding: Encoding, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
    try:
        encoding.decode(stored, shape, dtype)
    except CorruptArtifact:
        return
    raise AssertionError(f"{encoding.name} must raise CorruptArtifact, and does not: {what}")


def _spoil(stored: Encoded, part: str) -> dict[str, Encoded]:
    """Return what is stored, with one part or parameter not as it should be."""
    value, others = stored.parts[part], {other: value for other, value in stored.parts.items() if other != part}
    changed = {
        "missing": others,
        "misnamed": {**others, "other": value},
        "beside another": {**stored.parts, "other": value},
        "shorter": {**others, part: value.reshape(-1)[:-1]},
        "longer": {**others, part: torch.cat([value.reshape(-1), value.reshape(-1)[:1]])},
        "of one dimension more": {**others, part: value.unsqueeze(0)},
        "of another dtype": {**others, part: tensor_bytes(value).view(torch.int8)},
        "empty": {**others, part: value.reshape(-1)[:0]},
    }
    return {why: Encoded(parts, stored.parameters) for why, parts in changed.items()} | {
        "with a parameter too many": Encoded(stored.parts, {**stored.parameters, "other": 1})
    }


# -- kernels -------------------------------------------------------------------------------------------------------


def check_kernel(kernel: Backend | str, device: str = "cpu") -> None:
    """Check that a backend for Kronecker-sparse matrices multiplies as the dense matrix does, and its gradients.

    Args:
        kernel: a `tamis.kronecker` backend, registered, or its name.
        device: where to multiply. What the backend does not accept there is left out; something must be left.

    Raises:
        AssertionError: a product or gradient is not that of the dense matrix, or it accepts nothing.

    Example:
        >>> check_kernel("bmm")
    """
    name = kernel if isinstance(kernel, str) else kernel.name
    assert name in BACKENDS, f"there is no backend '{name}'; known: {', '.join(BACKENDS)}"
    accepted = 0
    for shape in ((2, 3, 2, 2), (1, 2, 3, 1), (3, 1, 2, 1), (1, 2, 1, 3), (2, 2, 2, 1), (1, 1, 1, 1), (3, 4, 5, 2)):
        for layout in ("batch_first", "batch_last"):
            for dtype in (torch.float64, torch.float32):
                for batch in (0, 1, 7):
                    accepted += _check_product(name, Pattern(*shape), layout, batch, dtype, device)
    assert accepted, f"the backend '{name}' accepts nothing on {device}"


def _check_product(name: str, pattern: Pattern, layout: str, batch: int, dtype: torch.dtype, device: str) -> bool:
    """Check one product and its gradients, and return False where the backend does not accept it."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    first = layout == "batch_first"
    weight = draw(*pattern.shape).requires_grad_()
    x = (draw(batch, pattern.columns) if first else draw(pattern.columns, batch)).requires_grad_()
    if BACKENDS[name].accepts(x, weight, pattern, layout):
        return False
    gradient = draw(batch, pattern.rows) if first else draw(pattern.rows, batch)
    y = multiply(x, weight, pattern, layout, name)
    y.backward(gradient)
    # The reference runs in float64 on the same numbers, so that the slack is for the backend's own error.
    dense_x, dense_weight = (each.detach().double().requires_grad_() for each in (x, weight))
    matrix = _make_dense(dense_weight, pattern)
    wanted = dense_x @ matrix.T if first else matrix @ dense_x
    wanted.backward(gradient.double())
    what = f"backend '{name}', pattern {pattern.shape}, {layout}, a batch of {batch}, {dtype}"
    slack = 1e-12 if dtype is torch.float64 else 1e-4
    assert y.shape == wanted.shape and y.dtype is dtype, f"{what}: {y.dtype} of shape {tuple(y.shape)}"
    for found, right in ((y, wanted), (x.grad, dense_x.grad), (weight.grad, dense_weight.grad)):
        assert found is not None and right is not None, f"{what}: it has no gradients"
        torch.testing.assert_close(
            found.detach().double(), right.detach(), rtol=slack, atol=slack, msg=lambda text: f"{what}: {text}"
        )
    return True


def _make_dense(weight: Tensor, pattern: Pattern) -> Tensor:
    """Return the matrix by the definition: entry (i, k, m, j) of the weight in block i, at offset j."""
    a, b, c, d = pattern.shape
    blocks = weight.permute(0, 1, 3, 2).unsqueeze(-1) * torch.eye(d, dtype=weight.dtype, device=weight.device)[:, None]
    return torch.block_diag(*blocks.reshape(a, b * d, c * d))
