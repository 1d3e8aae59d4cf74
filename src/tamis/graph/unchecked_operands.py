"""Some kernels of torch do not check their operands, and read outside a tensor or crash if these do not fit.

Most kernels compare the shapes of what they are given. On CPUs those of attention, of an LSTM and of a weight norm do
not compare all of them; and a graph in a file may say of a weight that it has another shape than the one in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram


def find_mismatch(program: ExportedProgram) -> str | None:
    """Return a description of the first wrong shape in a program, or None if all are right."""
    return next(chain(_find_stored_mismatches(program), _find_operand_mismatches(program)), None)


def _find_stored_mismatches(program: ExportedProgram) -> Iterator[str]:
    """Yield the tensors that differ from what the graph says, on which all its other shapes depend."""
    # Torch reads the graph's shapes from the file's text, and the tensors from other members of the same archive.
    said = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    stored = {**program.state_dict, **program.constants}
    for spec in program.graph_signature.input_specs:
        found, claim = stored.get(spec.target or ""), said.get(getattr(spec.arg, "name", ""))
        if not isinstance(found, Tensor) or not isinstance(claim, Tensor):
            continue
        if found.dtype != claim.dtype or _format_shape(found) != _format_shape(claim):
            there, claimed = _describe_tensor(found), _describe_tensor(claim)
            yield f"its tensor {spec.target!r:.200} is {there}, and its graph says {claimed}"


def _find_operand_mismatches(program: ExportedProgram) -> Iterator[str]:
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            name = getattr(node.target, "_schema", None) and node.target._schema.name
            if name in FITS and not _operands_fit(FITS[name], node):
                yield f"its {node.target} at {node.name!r:.200} has operands that do not fit together"


def _operands_fit(fits: Callable[..., bool], node: torch.fx.Node) -> bool:
    """Return whether the operands fit; operands of unknown shape do not."""
    try:
        return fits(*torch.fx.node.map_arg(node.args, lambda each: _format_shape(each.meta["val"])), **node.kwargs)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError):
        return False


def _describe_tensor(value: Tensor) -> str:
    return f"{value.dtype} of shape ({', '.join(_format_shape(value))})"


def _format_shape(value: Tensor) -> tuple[str, ...]:
    """Return sizes as texts, where two sizes are the same if they have the same formula."""
    return tuple(map(str, value.shape))


def _fit_in_attention(query: Any, key: Any, value: Any, *others: Any, **named: Any) -> bool:
    """Check that each key has a value."""
    return bool(key[:-1] == value[:-1])


def _fit_in_lstm(x: Any, states: Any, weights: Any, *options: Any) -> bool:
    """Check that the weights are those of PyTorch's LSTM without projections, for these sizes of input and states."""
    # In the order of the schema; dropout and training change no shape.
    biased, layers, _, _, both, first = options
    directions, hidden = 2 if both else 1, states[0][2]
    # An LSTM with projections has one weight more in each direction, and states of two different widths.
    if len(weights) != layers * directions * (4 if biased else 2):
        return False
    gates = str(4 * int(hidden))  # input, forget, cell and output gate lie below one another
    state = (str(layers * directions), x[0 if first else 1], hidden)
    wanted: list[tuple[str, ...]] = []
    for layer in range(layers):
        # From the second layer on, a layer reads the outputs of both directions side by side.
        inputs = str(directions * int(hidden)) if layer else x[2]
        wanted += [(gates, inputs), (gates, hidden), *[(gates,)] * (2 * biased)] * directions
    return list(states) == [state, state] and list(weights) == wanted


def _fit_in_weight_norm(directions: Any, lengths: Any, axis: int = 0) -> bool:
    """Check that each direction has a length."""
    return bool(lengths == tuple(size if place == axis else "1" for place, size in enumerate(directions)))


def _fit_in_division(dividend: Any, divisor: Any, *, rounding_mode: str | None = None) -> bool:
    """Refuse rounding towards zero, since the processor stops when the least integer is divided so by -1."""
    return rounding_mode != "trunc"


FITS: dict[str, Callable[..., bool]] = {
    "aten::scaled_dot_product_attention": _fit_in_attention,
    "aten::lstm": _fit_in_lstm,
    "aten::_weight_norm": _fit_in_weight_norm,
    "aten::div": _fit_in_division,
    "aten::divide": _fit_in_division,
}
