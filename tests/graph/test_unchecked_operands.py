"""Which shapes fit together in operations whose kernels do not check them."""

from __future__ import annotations

import pytest
from torch import nn

from tamis.graph.unchecked_operands import _fit_in_lstm


def shapes(lstm: nn.LSTM) -> list[tuple[str, ...]]:
    """The shapes of all weights, as texts: sizes may be formulas."""
    return [tuple(str(size) for size in weight.shape) for weight in lstm._flat_weights]


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_weights_of_an_lstm_fit_and_no_others(layers: int, both: bool, biased: bool) -> None:
    lstm = nn.LSTM(3, 5, layers, bias=biased, bidirectional=both, batch_first=True)
    state = (str(layers * (1 + both)), "2", "5")
    options = (biased, layers, 0.0, False, both, True)
    assert _fit_in_lstm(("2", "7", "3"), (state, state), shapes(lstm), *options)
    assert not _fit_in_lstm(("2", "7", "4"), (state, state), shapes(lstm), *options)
    assert not _fit_in_lstm(("3", "7", "3"), (state, state), shapes(lstm), *options)
    assert not _fit_in_lstm(("2", "7", "3"), (state, state), shapes(lstm)[1:], *options)
    wrong = [*shapes(lstm)[:-1], ("1", *shapes(lstm)[-1][1:])]
    assert not _fit_in_lstm(("2", "7", "3"), (state, state), wrong, *options)
