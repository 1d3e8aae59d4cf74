"""What stayed float is listed by the user's own names, with the reason, and together with the rest is everything."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.artifact.float_layers import BIAS, NOT_CHOSEN, list_untouched, sentences


class Words(nn.Module):
    """Tokens, an LSTM, a normalization, a parameter of its own, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.memory = nn.Embedding(11, 4), nn.LSTM(4, 5, batch_first=True)
        self.norm, self.first, self.head = nn.LayerNorm(5), nn.Linear(5, 6), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.memory(self.words(tokens))
        return self.head(torch.relu(self.first(self.norm(states[:, -1]))) * self.scale)


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    torch.manual_seed(0)
    return tamis.trace(Words().eval(), torch.zeros(2, 7, dtype=torch.int64))


def test_every_parameter_is_treated_or_listed(net: tamis.Network) -> None:
    small = tamis.quantize(
        net, torch.arange(280).reshape(40, 7) % 11, levels=4, exclude="head", c_alpha=2.0, progress=False
    )
    found = {each.layer: each for each in small.untouched}
    named = [name for each in small.untouched for name in each.parameters]
    assert sorted([*named, *small.codes]) == sorted(net.trainable) and len(named) == len(set(named))
    assert "an embedding" in found["words"].reason and found["words"].weights == 44
    assert "an LSTM" in found["memory"].reason and len(found["memory"].parameters) == 4
    assert "a normalization" in found["norm"].reason
    assert found["first"].reason == BIAS and found["first"].parameters == ("first.bias",)
    assert "'aten.mul.Tensor' reads it" in found["scale"].reason
    assert [each.reason for each in small.untouched if each.layer == "head"] == [NOT_CHOSEN, BIAS]
    text = " ".join(small.summary().split())  # lines are broken to fit a terminal: the words are what is tested
    assert "stayed float: 44 weights of words: an embedding: a table that is looked up, where no layer mult" in text
    assert f"stayed float: 9 weights of first, head: {BIAS}" in text


def test_pruning_leaves_other_things(net: tamis.Network) -> None:
    small = tamis.prune(net, 0.5, by="magnitude", biases=True)
    assert {each.layer for each in small.untouched} == {"words", "memory", "norm", "scale"}


def test_nothing_and_what_nobody_reads(net: tamis.Network) -> None:
    assert list_untouched(net, net.params) == () and sentences(()) == []
    alone = net.replace(params={**net.params, "lonely": torch.zeros(2)}, trainable=net.trainable | {"lonely"})
    assert list_untouched(alone, net.params)[0].reason == "nothing in the network reads it"
