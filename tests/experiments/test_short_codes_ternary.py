"""The code of ternary weights: what is told is what is received, and the code words are no more than there may be."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.short_codes_search import code_bits
from experiments.short_codes_ternary import count_bits, decode, encode
from tamis.errors import CorruptArtifact

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

some = settings(max_examples=60, deadline=None)
shapes = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), min_size=1, max_size=3)


@some
@given(shapes, st.integers(0, 2**31), st.floats(0, 1))
def test_what_is_told_is_received(each: list[tuple[int, int]], seed: int, density: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for place, shape in enumerate(each):
        kept = torch.rand(shape, generator=generator) < density
        weights[f"{place}.weight"] = kept * (2.0 * torch.randint(0, 2, shape, generator=generator) - 1)
    number, base = encode(weights)
    assert 0 <= number < base
    received = decode(number, {name: tuple(value.shape) for name, value in weights.items()})
    assert all(torch.equal(received[name], value) for name, value in weights.items())
    assert count_bits(base) == pytest.approx(sum(map(code_bits, weights.values())), abs=1 + 1e-9)


@pytest.mark.parametrize("entries", [1, 2, 5])
def test_every_network_has_a_word_of_its_own_and_the_words_are_not_too_short(entries: int) -> None:
    words, kraft = set(), Fraction(0)
    for values in itertools.product((-1.0, 0.0, 1.0), repeat=entries):
        number, base = encode({"weight": torch.tensor(values)})
        words.add((number, base))
        kraft += Fraction(1, base)
        assert math.log2(base) <= count_bits(base)
    assert len(words) == 3**entries and kraft == 1


def test_what_is_not_ternary_or_no_message_is_refused() -> None:
    with pytest.raises(CorruptArtifact, match="'weight' has weights other than"):
        encode({"weight": torch.tensor([0.5])})
    with pytest.raises(CorruptArtifact, match="too large for a message"):
        decode(10**6, {"weight": (2,)})
