"""What every encoding promises: exact, deterministic, sparing of memory, and wary of what it reads."""

from __future__ import annotations

import pytest
import torch
from any_tensors import masked_tensors, quantized_tensors, same, same_codes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.artifact import Codes
from tamis.artifact.encodings import ENCODINGS, Decoded, Encoded, shortest
from tamis.errors import CorruptArtifact

many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
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
    return Decoded(codes.masked(kept).values(kept), kept, codes.masked(kept))


SPECIMENS = [(name, number) for name in ENCODINGS for number in range(len(specimens(name)))]
every_specimen = pytest.mark.parametrize(("name", "number"), SPECIMENS)


def decoded(name: str, stored: Encoded, like: Decoded) -> Decoded:
    return ENCODINGS[name].decode(stored, tuple(like.tensor.shape), like.tensor.dtype)


def assert_same(one: Decoded, other: Decoded) -> None:
    assert same(one.tensor, other.tensor) and one.tensor.is_contiguous()
    assert (one.mask is None) == (other.mask is None)
    assert one.mask is None or same(one.mask, other.mask)
    assert same_codes(one.codes, other.codes)


@pytest.mark.parametrize("name", ENCODINGS)
def test_its_name_is_the_one_it_is_registered_under(name: str) -> None:
    assert ENCODINGS[name].name == name


@every_specimen
def test_it_accepts_its_specimen_and_names_its_parts_in_letters(name: str, number: int) -> None:
    stored = ENCODINGS[name].encode(specimens(name)[number])
    assert stored is not None
    assert all(part.isascii() and part.isalpha() and part.islower() for part in stored.parts)
    assert not {"name", "parts", "encoding", "shape", "dtype"} & set(stored.parameters)
    assert stored.nbytes == sum(part.numel() * part.element_size() for part in stored.parts.values())


@pytest.mark.parametrize("name", ENCODINGS)
@many
@given(anything)
def test_what_it_accepts_comes_back_bit_for_bit(name: str, content: Decoded) -> None:
    stored = ENCODINGS[name].encode(content)
    if stored is None:
        return
    assert all(part.is_contiguous() for part in stored.parts.values())
    assert_same(decoded(name, stored, content), content)


@many
@given(anything)
def test_the_shortest_is_the_shortest(content: Decoded) -> None:
    name, stored = shortest(content)
    candidates = [encoding.encode(content) for encoding in ENCODINGS.values()]
    assert stored.nbytes == min(candidate.nbytes for candidate in candidates if candidate is not None)
    assert_same(decoded(name, stored, content), content)


@every_specimen
def test_what_it_returns_has_memory_of_its_own(name: str, number: int) -> None:
    content = specimens(name)[number]
    stored = ENCODINGS[name].encode(content)
    result = decoded(name, stored, content)
    codes = [] if result.codes is None else [result.codes.indices, result.codes.levels, result.codes.scales]
    results = [value for value in (result.tensor, result.mask, *codes) if value is not None]
    kept = [value.clone() for value in results]
    for part in stored.parts.values():
        part.copy_(torch.ones_like(part))
    assert all(same(value, before) for value, before in zip(results, kept, strict=True))


def spoilt(stored: Encoded, part: str) -> dict[str, Encoded]:
    """What is stored, with one part or parameter not as it should be."""
    value, others = stored.parts[part], {other: value for other, value in stored.parts.items() if other != part}
    changed = {
        "missing": others,
        "misnamed": {**others, "other": value},
        "beside another": {**stored.parts, "other": value},
        "shorter": {**others, part: value.reshape(-1)[:-1]},
        "longer": {**others, part: torch.cat([value.reshape(-1), value.reshape(-1)[:1]])},
        "of one dimension more": {**others, part: value.unsqueeze(0)},
        "of another dtype": {**others, part: value.reshape(-1).view(torch.int8)},
        "empty": {**others, part: value.reshape(-1)[:0]},
    }
    return {why: Encoded(parts, stored.parameters) for why, parts in changed.items()} | {
        "with a parameter too many": Encoded(stored.parts, {**stored.parameters, "other": 1})
    }


@every_specimen
def test_what_does_not_fit_is_refused(name: str, number: int) -> None:
    content = specimens(name)[number]
    stored = ENCODINGS[name].encode(content)
    for part in stored.parts:
        for why, wrong in spoilt(stored, part).items():
            with pytest.raises(CorruptArtifact):
                decoded(name, wrong, content)
                pytest.fail(f"{name} with its part '{part}' {why}")
    (rows, columns), own = content.tensor.shape, content.tensor.dtype
    other = torch.int32 if own.is_floating_point else torch.float64
    for shape, dtype in (((rows, columns - 1), own), ((rows, columns, 9), own), ((rows, columns), other)):
        with pytest.raises(CorruptArtifact):
            ENCODINGS[name].decode(stored, shape, dtype)


@pytest.mark.parametrize("name", ENCODINGS)
@many
@given(anything, st.data())
def test_forged_parts_decode_to_the_right_shape_or_not_at_all(name: str, content: Decoded, data: st.DataObject) -> None:
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
