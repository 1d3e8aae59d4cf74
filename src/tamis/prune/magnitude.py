"""Magnitude pruning: the weights nearest to zero go first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from tamis.graph.network import Network


class Magnitudes(Mapping[str, Tensor]):
    """|θ_i| for every entry of some parameters, computed when asked for: all of them at once would be a second network.

    Not invariant: the same function with rescaled weights is pruned elsewhere (thesis, section 3.5.2).
    """

    def __init__(self, net: Network, names: Sequence[str]) -> None:
        self._params = {name: net.params[name] for name in names}

    def __getitem__(self, name: str) -> Tensor:
        return self._params[name].abs()

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


def magnitude_scores(net: Network, names: Sequence[str], seed: int) -> Mapping[str, Tensor]:
    """|θ_i| for every entry of the parameters named."""
    return Magnitudes(net, names)
