"""Streams and unions of networks: what they are made of, in which order they come, what is state_error."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.bayes.networks import Conv1d, Conv2d, Dense, Graph
from tamis.bayes.prior import Prior
from tamis.bayes.streams import (
    FREQUENCIES,
    LENGTH,
    UNIONS,
    Stream,
    build_space,
    load_images,
    load_stream,
    make_nodes,
    make_series,
)
from tamis.bayes.xnor import Xnor
from tamis.errors import InvalidInput
from tamis.training import load_data


def some(count: int) -> Stream:
    return Stream("some", torch.arange(float(count))[:, None], torch.zeros(count, dtype=torch.int64), 2)


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 12), rounds=st.integers(1, 9), batch=st.integers(1, 7), seed=st.integers(0, 99))
def test_every_pass_takes_each_sample_once(count: int, rounds: int, batch: int, seed: int) -> None:
    flat = some(count).order(rounds, batch, seed).flatten()
    for start in range(0, len(flat), count):
        one_pass = flat[start : start + count].tolist()
        assert len(set(one_pass)) == len(one_pass) and set(one_pass) <= set(range(count))


@settings(max_examples=30, deadline=None)
@given(rounds=st.integers(1, 9), more=st.integers(0, 9), batch=st.integers(1, 7))
def test_the_first_rounds_do_not_depend_on_how_many_follow(rounds: int, more: int, batch: int) -> None:
    whole = some(11).order(rounds + more, batch, 3)
    assert torch.equal(some(11).order(rounds, batch, 3), whole[:rounds])


def test_another_seed_is_another_order() -> None:
    assert not torch.equal(some(50).order(2, 20, 0), some(50).order(2, 20, 1))
    assert torch.equal(some(50).order(2, 20, 0), some(50).order(2, 20, 0))


def test_images_are_on_the_scale_0_to_1_and_pooled() -> None:
    whole, half = load_images("digits:test[:20]"), load_images("digits:test[:20]", pool=2)
    stored = load_data("digits:test[:20]")
    assert whole.inputs.dtype is torch.float64 and whole.shape == (1, 8, 8) and half.shape == (1, 4, 4)
    assert float(whole.inputs.min()) == 0 and float(whole.inputs.max()) == 1
    assert torch.equal(whole.labels, stored.labels)
    blocks = whole.inputs.reshape(20, 1, 4, 2, 4, 2).mean((3, 5))
    assert torch.allclose(half.inputs, blocks, atol=1e-6)
    places = torch.tensor([3, 1])
    assert torch.equal(whole.select(places)[0], whole.inputs[[3, 1]]) and torch.equal(
        whole.select(places)[1], stored.labels[[3, 1]]
    )


def test_a_series_is_told_by_its_frequency_and_not_by_its_mean() -> None:
    made = make_series()
    assert made.shape == (1, LENGTH) and torch.equal(made.inputs, make_series().inputs)
    power = torch.fft.rfft(made.inputs[:, 0], n=256).abs()
    found = power.argmax(1) / 256
    nearest = (found[:, None] - torch.tensor(FREQUENCIES)).abs().argmin(1)
    assert float((nearest == made.labels).double().mean()) > 0.99
    for label in range(made.classes):
        mean = made.inputs[made.labels == label].mean(0)
        assert float(mean.abs().max()) < 0.12  # √(1.09 / 1300) is 0.03


def test_communities_are_joined_within() -> None:
    made = make_nodes()
    assert made.graph is not None
    adjacency, features = made.graph
    assert torch.equal(adjacency, adjacency.T) and bool((adjacency.diagonal() == 1).all())
    same = (made.labels[:, None] == made.labels) & ~torch.eye(len(made), dtype=torch.bool)
    assert float(adjacency[same].mean()) > 0.2 > 0.05 > float(adjacency[made.labels[:, None] != made.labels].mean())
    own = features.argmax(1) == made.labels
    around = (adjacency @ features).argmax(1) == made.labels
    assert float(own.double().mean()) < 0.75 < 0.85 < float(around.double().mean())


@pytest.mark.parametrize(
    ("data", "space", "kind"),
    [
        ("digits", "dense", Dense),
        ("digits", "conv2d", Conv2d),
        ("digits", "xnor", Xnor),
        ("series", "dense", Dense),
        ("series", "conv1d", Conv1d),
        ("series", "xnor", Xnor),
        ("graph", "graph", Graph),
    ],
)
def test_spaces_take_what_their_streams_give(data: str, space: str, kind: type) -> None:
    union, stream = build_space(load_stream(data), space)
    assert type(union) is kind and union.classes == stream.classes
    assert {each.layers for each in union.structures} == set(UNIONS[space].layers)
    x, _ = stream.select(torch.tensor([0, 5, 2]))
    structure = union.structures[0]
    assert union.logits(structure, torch.zeros(1, union.count(structure)).double(), union.check_inputs(x)).shape == (
        1,
        3,
        stream.classes,
    )


def test_xnor_networks_are_odd_so_that_the_series_is_not_theirs_to_learn() -> None:
    """x and −x have one class there, and logits less the last bias change sign with x."""
    union, stream = build_space(load_stream("series"), "xnor")
    prior, generator, x = Prior(0.3), torch.Generator().manual_seed(0), stream.inputs[:8]
    for structure in union.structures:
        kinds = union.kinds(structure)
        weights = prior.weights(prior.sample_latent(kinds, 4, generator), kinds)
        bias = torch.stack([union.split(structure, each)["last.bias"] for each in weights])[:, None]
        there, back = (union.logits(structure, weights, each) - bias for each in (x, -x))
        assert torch.allclose(there, -back, atol=1e-12) and float(there.abs().max()) > 1e-3


def test_a_union_of_ones_own() -> None:
    union, _ = build_space(load_stream("series"), "conv1d", layers=[2], filters=[3, 5], sizes=[4])
    assert [(each.layers, each.filters, each.size) for each in union.structures] == [(2, 3, 4), (2, 5, 4)]


@pytest.mark.parametrize(
    ("data", "space", "message"),
    [
        ("digits", "conv3d", "one of dense, conv1d, conv2d, graph, xnor, got 'conv3d'"),
        ("digits", "conv1d", "images of 'digits': take one of dense, conv2d, xnor"),
        ("digits", "graph", "images of 'digits'"),
        ("series", "conv2d", "signals of 'series': take one of dense, conv1d, xnor"),
        ("graph", "dense", "numbers of nodes of 'graph': take one of graph"),
        ("graph", "xnor", "take one of graph"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(data: str, space: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build_space(load_stream(data), space)


def test_other_refusals() -> None:
    with pytest.raises(InvalidInput, match="no sizes"):
        build_space(load_stream("digits"), "dense", sizes=[3])
    with pytest.raises(InvalidInput, match="pool = 2"):
        load_stream("series", pool=2)
    with pytest.raises(InvalidInput, match="pool = 9 is more than the 8×8"):
        load_images("digits:test[:5]", pool=9)
    with pytest.raises(InvalidInput, match="rounds"):
        some(3).order(0, 1, 0)
    with pytest.raises(InvalidInput, match="batch"):
        some(3).order(1, 0, 0)
