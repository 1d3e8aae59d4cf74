"""What every described operation must satisfy; a new one is tested by being registered and bringing a specimen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import SPECIMENS, network

import tamis
from tamis.errors import InvalidInput, UnsupportedOp
from tamis.graph.network import op_name
from tamis.graph.ops import REGISTRY, Call, Capability, Op, Opaque, capability
from tamis.testing import check_op

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")

aten = torch.ops.aten
EXTENDING = Path(__file__).parents[2] / "docs" / "extending.md"
LIPSCHITZ_ONLY = {
    aten.tanh.default,
    aten.relu6.default,
    aten.sin.default,
    aten.atan.default,
    aten.asinh.default,
    aten.elu.default,
}
# Spellings, and numbers of dimensions, that the description of another operation here does not tell from it.
ALIKE = {
    *(aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.dim, aten.repeat.default),
    *(aten.select.int, aten.index_select.default, aten.flip.default, aten.roll.default),
    *(aten.split_with_sizes.default, aten.unbind.int),
    *(aten.pixel_shuffle.default, aten.pixel_unshuffle.default, aten.channel_shuffle.default),
    *(aten.reflection_pad1d.default, aten.reflection_pad3d.default),
    *(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default),
    *(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default),
    *(aten.upsample_nearest1d.vec, aten.upsample_nearest3d.vec),
    *(aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact2d.default),
    *(aten._upsample_nearest_exact3d.default, aten._upsample_nearest_exact1d.vec),
    *(aten._upsample_nearest_exact2d.vec, aten._upsample_nearest_exact3d.vec),
    *(aten.conv3d.padding, aten.conv_transpose1d.default, aten.conv_transpose3d.input),
    *(aten.clamp_max.default, aten.sub.Scalar, aten.div.Scalar),
    *(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default),
    *(aten.amin.default, aten.min.default, aten.sort.stable),
    *(aten.upsample_trilinear3d.default, aten.upsample_trilinear3d.vec),
}
TARGETS = [pytest.param(target, marks=pytest.mark.slow) if target in ALIKE else target for target in SPECIMENS]


def test_every_registered_operation_has_a_specimen() -> None:
    assert {target for target, op in REGISTRY.items() if not isinstance(op, Opaque)} == set(SPECIMENS)


@pytest.mark.parametrize("target", TARGETS, ids=op_name)
def test_every_operation_is_what_it_says_it_is(target: Any) -> None:
    net, x = network(target), SPECIMENS[target].example()
    assert any(node.target is target for node in net.nodes)
    # Up to rounding: sums of products may be added up in another order where memory is aligned in another way.
    torch.testing.assert_close(net(x), SPECIMENS[target].module()(x), rtol=1e-12, atol=1e-12)
    least = min(capability(net, node) for node in net.data_nodes)
    assert least == (Capability.LIPSCHITZ if target in LIPSCHITZ_ONLY else Capability.HOMOGENEOUS)
    check_op(REGISTRY[target], net, x)


@pytest.mark.parametrize("call", [tamis.path_norm, tamis.path_costs, tamis.lifting, tamis.product_norm])
def test_what_needs_homogeneity_refuses_by_name(call: Any) -> None:
    with pytest.raises(UnsupportedOp, match=r"needs a homogeneous network: 'aten\.tanh' at the top level of the model"):
        call(network(aten.tanh.default))


# -- operations from outside ---------------------------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[None]:
    """Operations that a test registers are forgotten after it."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.mark.usefixtures("registry")
def test_the_example_of_the_docs_runs_as_printed() -> None:
    """One file, from its imports to its check; without it the operation is opaque."""
    blocks = re.findall(r"```python\n(.*?)```", EXTENDING.read_text(), re.S)
    (example,) = (block for block in blocks if "class RunningSum" in block)
    found: dict[str, Any] = {}
    exec(compile(example, str(EXTENDING), "exec"), found)
    net = tamis.trace(found["model"], found["example"])
    assert isinstance(REGISTRY[aten.cumsum.default], found["RunningSum"])
    assert tamis.path_norm(net) > 0
    del REGISTRY[aten.cumsum.default]
    with pytest.raises(UnsupportedOp, match=r"'aten\.cumsum'"):
        tamis.path_norm(net)


class Sum(Op):
    """A description of the running sum that is wrong in one member at a time."""

    targets = (aten.cumsum.default,)

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Any:
        return call.run()

    def reach(self, call: Call) -> Any:
        return call["self"].cummax(call["dim"]).values

    def ties(self, call: Call, scales: Any) -> Any:
        return scales.reduced(call["self"], call["dim"], True).expand(call.shape)


class Sums(torch.nn.Module):
    """A running sum of four neurons with signs and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.layer(x).relu().cumsum(1))
        return result


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("member", "wrong", "message"),
    [
        ("magnitude", lambda self, call, q, one: call.run() / 2, "magnitude"),
        ("reach", lambda self, call: call["self"] / 2, "product norm"),
        ("ties", lambda self, call, scales: call["self"], "not close"),
    ],
)
def test_a_description_that_is_wrong_is_found_out(member: str, wrong: Any, message: str) -> None:
    torch.manual_seed(0)
    op = tamis.register_op(type("Wrong", (Sum,), {member: wrong})())
    example = torch.randn(2, 3, dtype=torch.float64)
    with pytest.raises(AssertionError, match=message):
        check_op(op, Sums().double(), example)


@pytest.mark.usefixtures("registry")
def test_what_cannot_be_registered_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"Mine cannot be registered: aten\.relu\.default is described by Relu already"
    ):
        tamis.register_op(type("Mine", (Op,), {"targets": (aten.relu.default,)})())
    with pytest.raises(InvalidInput, match=r"got <class .*Sum'>: pass an object of it, not the class"):
        tamis.register_op(Sum)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"Empty.targets must name the operations .* got \(\)"):
        tamis.register_op(type("Empty", (Op,), {})())
