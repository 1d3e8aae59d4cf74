"""What every encoding promises: exact, deterministic, sparing of memory, and wary of what it reads."""

from __future__ import annotations

import pytest
import torch
from any_tensors import masked_tensors, quantized_tensors, same, same_codes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tamis
from tamis.artifact import Codes
from tamis.artifact.encodings import ENCODINGS, Decoded, Encoded, shortest
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.testing import check_encoding

many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
anything = masked_tensors() | quantized_tensors()


def specimens(name: str) -> list[Decoded]:
    """For each encoding, tensors of two dimensions that it accepts."""
    weight = torch.tensor([[0.0, 1.5, 0.0], [-2.0, 0.0, 0.25]])
    indices = torch.tensor([[2, 1, 0], [0, 2, 2]], dtype=torch.uint8)
    codes = Codes(indices, torch.tensor([-1.5, 0, 1]), torch.tensor([[0.5], [0.1]]))
    kept = torch.tensor([[True, False, True], [True, True, True]])
    if name == "entropy":
        return rare()
    return {
        "dense": [Decoded(weight)],
        "narrow": [Decoded(weight)],
        "sparse": [Decoded(weight, weight != 0)],
        "levels": [Decoded(codes.values(), None, codes), masked(codes, kept)],
    }[name]


def rare() -> list[Decoded]:
    """30 × 40 entries of which few are not the same: indices, a mask, both, indices with a mask in runs, integers."""
    numbers = torch.arange(1200).reshape(30, 40)
    seldom = numbers * 7919 % 1201 < 100
    codes = Codes(seldom.byte() + (numbers % 100 == 0), torch.tensor([-1.5, 0, 1]), 0.1 + numbers[:, :1] / 7)
    return [
        Decoded(codes.values(), None, codes),
        Decoded((numbers / 7).where(seldom, 0.0), seldom),
        masked(codes, ~seldom),
        masked(codes, numbers >= 400),
        Decoded((seldom * 1000 + numbers // 600).long()),
    ]


def masked(codes: Codes, kept: torch.Tensor) -> Decoded:
    return Decoded(codes.apply_mask(kept).values(kept), kept, codes.apply_mask(kept))


def decoded(name: str, stored: Encoded, like: Decoded) -> Decoded:
    return ENCODINGS[name].decode(stored, tuple(like.tensor.shape), like.tensor.dtype)


def assert_same(one: Decoded, other: Decoded) -> None:
    assert same(one.tensor, other.tensor) and one.tensor.is_contiguous()
    assert (one.mask is None) == (other.mask is None)
    assert one.mask is None or same(one.mask, other.mask)
    assert same_codes(one.codes, other.codes)


@pytest.mark.parametrize("name", ENCODINGS)
def test_it_keeps_the_contract(name: str) -> None:
    assert ENCODINGS[name].name == name
    check_encoding(ENCODINGS[name], specimens(name))


@settings(many, max_examples=15)
@given(st.lists(anything, min_size=5, max_size=5))
def test_what_they_accept_comes_back_bit_for_bit(contents: list[Decoded]) -> None:
    """All encodings on the same tensors: to draw one takes longer than to encode it."""
    for name, encoding in ENCODINGS.items():
        check_encoding(encoding, specimens(name)[:1], contents)


@many
@given(anything)
def test_the_shortest_is_the_shortest(content: Decoded) -> None:
    name, stored = shortest(content)
    candidates = [encoding.encode(content) for encoding in ENCODINGS.values()]
    assert stored.nbytes == min(candidate.nbytes for candidate in candidates if candidate is not None)
    assert_same(decoded(name, stored, content), content)


@many
@given(anything, st.data())
def test_forged_parts_decode_to_the_right_shape_or_not_at_all(content: Decoded, data: st.DataObject) -> None:
    for name in ENCODINGS:
        check_forged(name, content, data)


def check_forged(name: str, content: Decoded, data: st.DataObject) -> None:
    stored = ENCODINGS[name].encode(content)
    if stored is None or stored.nbytes == 0 or content.tensor.dtype is torch.bool:
        return
    parts = {part: value.clone() for part, value in stored.parts.items()}
    forged = data.draw(st.sampled_from(sorted(part for part, value in parts.items() if value.numel())))
    changed = parts[forged].reshape(-1).view(torch.uint8)
    for _ in range(3):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        again = decoded(name, Encoded(parts, stored.parameters), content)
    except CorruptArtifact:
        return
    assert again.tensor.shape == content.tensor.shape and again.tensor.dtype is content.tensor.dtype
    assert (again.mask is None) == (content.mask is None) and (again.codes is None) == (content.codes is None)
    assert again.mask is None or (again.mask.shape == content.tensor.shape and again.mask.dtype is torch.bool)
    assert again.codes is None or same(again.codes.values(again.mask), again.tensor)
    its_name, once_more = shortest(again)
    assert_same(decoded(its_name, once_more, content), again)


@pytest.mark.parametrize(("given", "hint"), [(object(), "got <object"), (type(ENCODINGS["dense"]), "not the class")])
def test_what_is_no_encoding_is_refused(given: object, hint: str) -> None:
    with pytest.raises(InvalidInput, match=f"register_encoding needs an Encoding, .*{hint}"):
        tamis.register_encoding(given)  # type: ignore[arg-type]
