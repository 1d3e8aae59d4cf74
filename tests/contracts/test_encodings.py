"""What every encoding promises: exact, deterministic, sparing of memory, and wary of what it reads."""

from __future__ import annotations

import pytest
import torch
from any_tensors import masked_tensors, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.artifact.encodings import ENCODINGS, Encoded, shortest
from tamis.errors import CorruptArtifact

many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
Masked = tuple[Tensor, Tensor | None]

WEIGHT = torch.tensor([[0.0, 1.5, 0.0], [-2.0, 0.0, 0.25]])
SPECIMENS: dict[str, Masked] = {  # for each encoding, something it accepts
    "dense": (WEIGHT, None),
    "narrow": (WEIGHT, None),
    "sparse": (WEIGHT, WEIGHT != 0),
}


def decoded(name: str, stored: Encoded, tensor: Tensor) -> Masked:
    return ENCODINGS[name].decode(stored, tuple(tensor.shape), tensor.dtype)


@pytest.mark.parametrize("name", ENCODINGS)
def test_its_name_is_the_one_it_is_registered_under(name: str) -> None:
    assert ENCODINGS[name].name == name


@pytest.mark.parametrize("name", ENCODINGS)
def test_it_accepts_its_specimen_and_names_its_parts_in_letters(name: str) -> None:
    stored = ENCODINGS[name].encode(*SPECIMENS[name])
    assert stored is not None
    assert all(part.isascii() and part.isalpha() and part.islower() for part in stored.parts)
    assert not {"encoding", "shape", "dtype"} & set(stored.parameters)
    assert stored.nbytes == sum(part.numel() * part.element_size() for part in stored.parts.values())


@pytest.mark.parametrize("name", ENCODINGS)
@many
@given(masked_tensors())
def test_what_it_accepts_comes_back_bit_for_bit(name: str, masked: Masked) -> None:
    tensor, mask = masked
    stored = ENCODINGS[name].encode(tensor, mask)
    if stored is None:
        return
    assert all(part.is_contiguous() for part in stored.parts.values())
    again, its_mask = decoded(name, stored, tensor)
    assert same(again, tensor) and again.is_contiguous()
    assert (mask is None) == (its_mask is None)
    assert mask is None or same(its_mask, mask)


@many
@given(masked_tensors())
def test_the_shortest_is_the_shortest(masked: Masked) -> None:
    name, stored = shortest(*masked)
    candidates = [encoding.encode(*masked) for encoding in ENCODINGS.values()]
    assert stored.nbytes == min(candidate.nbytes for candidate in candidates if candidate is not None)
    assert same(decoded(name, stored, masked[0])[0], masked[0])


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_it_returns_has_memory_of_its_own(name: str) -> None:
    stored = ENCODINGS[name].encode(*SPECIMENS[name])
    results = [result for result in decoded(name, stored, SPECIMENS[name][0]) if result is not None]
    kept = [result.clone() for result in results]
    for part in stored.parts.values():
        part.copy_(torch.ones_like(part))
    assert all(same(result, before) for result, before in zip(results, kept, strict=True))


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


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    tensor, mask = SPECIMENS[name]
    stored = ENCODINGS[name].encode(tensor, mask)
    for part in stored.parts:
        for why, wrong in spoilt(stored, part).items():
            with pytest.raises(CorruptArtifact):
                decoded(name, wrong, tensor)
                pytest.fail(f"{name} with its part '{part}' {why}")
    for shape, dtype in (((2, 2), torch.float32), ((2, 3, 9), torch.float32), ((2, 3), torch.int64)):
        with pytest.raises(CorruptArtifact):
            ENCODINGS[name].decode(stored, shape, dtype)


@pytest.mark.parametrize("name", ENCODINGS)
@many
@given(masked_tensors(), st.data())
def test_forged_parts_decode_to_the_right_shape_or_not_at_all(name: str, masked: Masked, data: st.DataObject) -> None:
    tensor, mask = masked
    stored = ENCODINGS[name].encode(tensor, mask)
    if stored is None or stored.nbytes == 0 or tensor.dtype is torch.bool:
        return
    parts = {part: value.clone() for part, value in stored.parts.items()}
    forged = data.draw(st.sampled_from(sorted(part for part, value in parts.items() if value.numel())))
    content = parts[forged].reshape(-1).view(torch.uint8)
    for _ in range(3):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        again, its_mask = decoded(name, Encoded(parts, stored.parameters), tensor)
    except CorruptArtifact:
        return
    assert again.shape == tensor.shape and again.dtype is tensor.dtype
    assert (its_mask is None) == (mask is None)
    assert its_mask is None or (its_mask.shape == tensor.shape and its_mask.dtype is torch.bool)
