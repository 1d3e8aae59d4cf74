"""Every transform chooses parameters by name, with the `include` and `exclude` patterns that are read here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from tamis.errors import InvalidInput, join_names
from tamis.graph.network import Network

Patterns = str | Iterable[str] | None


def selected(net: Network, known: Sequence[str], include: Patterns, exclude: Patterns, done: str) -> tuple[str, ...]:
    """Return the parameters among `known` that the user's patterns choose.

    Args:
        net: whose aliases count as names, too.
        known: what can be chosen.
        include, exclude: patterns; None includes all, or excludes nothing.
        done: what happens to those that are chosen, for messages: "pruned".
    """
    names = {name: [name, *(alias for alias, first in net.aliases.items() if first == name)] for name in known}
    wanted, unwanted = as_patterns(include), as_patterns(exclude)
    # A pattern that matches nothing is most likely misspelt, and would silently choose too much or too little.
    for pattern in (*wanted, *unwanted):
        if not any(matches(names[name], (pattern,)) for name in known):
            raise InvalidInput(f"'{pattern}' matches no parameter that can be {done}; these can: {join_names(known)}")
    included = [name for name in known if include is None or matches(names[name], wanted)]
    chosen = tuple(name for name in included if not matches(names[name], unwanted))
    if not chosen:
        raise InvalidInput(f"nothing is left to be {done}: {include=} and {exclude=} leave none of {join_names(known)}")
    return chosen


def as_patterns(patterns: Patterns) -> tuple[str, ...]:
    """Return one pattern, several, or none as a tuple."""
    return () if patterns is None else (patterns,) if isinstance(patterns, str) else tuple(patterns)


def lasting(patterns: Patterns) -> Patterns:
    """Return the same patterns, in a tuple if they come from a generator, which gives them only once."""
    return patterns if patterns is None or isinstance(patterns, (str, list, tuple)) else tuple(patterns)


def matches(names: Iterable[str], patterns: Sequence[str]) -> bool:
    """Return whether a pattern names a parameter, by one of its names, or a module that it is in.

    Example:
        >>> matches(["layer1.0.conv1.weight"], ["layer1"]), matches(["layer1.0.conv1.weight"], ["*.conv1.*"])
        (True, True)
    """
    parts = [name.split(".") for name in names]
    paths = [".".join(each[:length]) for each in parts for length in range(1, len(each) + 1)]
    # A name means itself, too, whatever it is made of: ModuleDict takes "fc[a]".
    return any(path == pattern or fnmatchcase(path, pattern) for path in paths for pattern in patterns)
