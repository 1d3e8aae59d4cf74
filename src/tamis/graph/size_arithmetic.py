"""Python would carry out the arithmetic on sizes in a file's graph on integers of any length, so it is limited.

A node that multiplies the result of the one before it by itself doubles the digits: forty of them fill the memory. So
before anything is computed, the bits of every result are bounded by those of its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SIZE = 64  # bits
LONGEST = 512  # bits: eight sizes multiplied
# No powers, shifts or factorials: one of them is enough to fill the memory.
OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "pos"),
    *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_"),
)
FUNCTIONS = (
    *(f"_operator.{name}" for name in OPERATORS),
    *(f"math.{name}" for name in ("ceil", "floor", "trunc", "sqrt")),
    *(f"torch.{name}" for name in ("sym_float", "sym_int", "sym_not", "sym_max", "sym_min", "sym_ite", "sym_sum")),
    "torch._sym_sqrt",
)
ITEM = "_operator.getitem"
NUMBERS = frozenset(
    ("as_int", "as_ints", "as_float", "as_bool", "as_sym_int", "as_sym_ints", "as_sym_float", "as_sym_bool")
)


def find_excess(graph: Mapping[str, Any], given: int = SIZE) -> str | None:
    """Return what in a graph could compute something too long, or None where nothing can.

    Args:
        graph: as `torch.export.save` writes it.
        given: the bits of sizes that come from outside of it.
    """
    return next((f"it calls {target}{why}" for target, _, why in _iterate_results(graph, given) if why), None)


def _iterate_results(graph: Mapping[str, Any], given: int) -> Iterator[tuple[str, int, str]]:
    """Yield for every node, also of graphs inside it, what it calls, how many bits that gives, and what is wrong."""
    known: dict[str, int] = {}
    for node in graph["nodes"]:
        target, arguments = node["target"], [each["arg"] for each in node["inputs"]]
        widths = [
            width for each in arguments if "as_graph" not in each for width in _iterate_widths(each, known, given)
        ]
        bits = _bound_bits(target, widths)
        for inner in (each["as_graph"]["graph"] for each in arguments if "as_graph" in each):
            for result in _iterate_results(inner, max(widths, default=given)):
                bits = max(bits, result[1])
                yield result
        known.update(dict.fromkeys(_iterate_words(node["outputs"]), bits))
        why = f" for numbers that may have more than {LONGEST} bits" if bits > LONGEST else ""
        if target in FUNCTIONS and not NUMBERS.issuperset(key for each in arguments for key in each):
            why = (
                " for something that is no number"  # Python multiplies lists, and formats texts, by the same operators
            )
        yield target, bits, why


def _bound_bits(target: str, widths: list[int]) -> int:
    if target == "_operator.mul":
        return sum(widths)
    return max(widths, default=0) + len(widths) if target in (*FUNCTIONS, ITEM) else SIZE


def _iterate_widths(value: Any, known: Mapping[str, int], given: int) -> Iterator[int]:
    """Return the bits of all numbers in an argument, where every text is a name."""
    if isinstance(value, str):
        yield known.get(value, given)
    elif isinstance(value, int):
        yield value.bit_length()
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _iterate_widths(each, known, given)


def _iterate_words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _iterate_words(each)
