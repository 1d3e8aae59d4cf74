"""Digests of samples: the same for the same sample, however it comes; sets of them, and what chance takes for a hit."""

import copy
import io
import pickle

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tamis
from tamis.graph.seen_samples import CELLS, NOTHING_SEEN, SeenSamples, remember, sample_digests, seen_by
from tamis.training import Data

FLOAT = (torch.float32,)


def random_digests(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def test_a_sample_has_one_digest_in_any_batch_place_and_layout() -> None:
    images = torch.randn(7, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    digests = sample_digests((images,), FLOAT)
    assert len(set(digests.tolist())) == 7
    ways = {
        "one by one": np.concatenate([sample_digests((each[None],), FLOAT) for each in images]),
        "backwards": sample_digests((images.flip(0),), FLOAT)[::-1],
        "channels last": sample_digests((images.to(memory_format=torch.channels_last),), FLOAT),
        "a view": sample_digests((images.repeat(1, 2, 1, 1)[:, :3],), FLOAT),
        "float64": sample_digests((images.double(),), FLOAT),
        "with a gradient": sample_digests((images.clone().requires_grad_(),), FLOAT),
    }
    for way, found in ways.items():
        np.testing.assert_array_equal(found, digests, err_msg=way)


def test_zeros_of_both_signs_are_one_sample_and_shapes_and_kinds_of_numbers_are_not() -> None:
    zeros = torch.zeros(1, 4)
    (digest,) = sample_digests((zeros,), FLOAT)
    assert sample_digests((-zeros,), FLOAT) == [digest]
    assert sample_digests((zeros.view(1, 2, 2),), FLOAT) != [digest]
    assert sample_digests((zeros,), (torch.int32,)) != [digest]
    assert sample_digests((zeros,), (torch.float64,)) == [digest]
    assert len(sample_digests((torch.empty(3, 0),), FLOAT)) == 3


def test_all_inputs_of_a_sample_count_and_a_whole_input_may_be_one_sample() -> None:
    first, second = torch.arange(6.0).view(2, 3), torch.tensor([[1], [2]])
    dtypes = (torch.float32, torch.int64)
    digests = sample_digests((first, second), dtypes)
    assert sample_digests((first[:1], second[1:]), dtypes) != digests[:1]
    assert sample_digests((first[0], second[0]), dtypes, batched=False) == digests[:1]


def test_images_stored_as_bytes_have_the_digests_of_what_a_network_is_fed() -> None:
    stored = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    data = Data(stored, torch.zeros(5, dtype=torch.int64), "mine", mean, std)
    by_hand = (stored / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    np.testing.assert_array_equal(data.sample_digests, sample_digests((by_hand,), FLOAT))
    np.testing.assert_array_equal(data[1:3].sample_digests, data.sample_digests[1:3])


def test_a_sample_has_one_digest_in_every_dtype_that_holds_it() -> None:
    eighths = torch.randint(-40, 40, (5, 3), generator=torch.Generator().manual_seed(0)) / 8
    digests = sample_digests((eighths,), FLOAT)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        np.testing.assert_array_equal(sample_digests((eighths.to(dtype),), (dtype,)), digests, err_msg=str(dtype))
    numbers = torch.randint(0, 100, (5, 3), generator=torch.Generator().manual_seed(0))
    for dtype in (torch.uint8, torch.int32):
        np.testing.assert_array_equal(
            sample_digests((numbers.to(dtype),), (dtype,)), sample_digests((numbers,), (torch.int64,))
        )


def test_numbers_of_words_are_what_a_network_is_fed() -> None:
    words = torch.tensor([[2**24, 1], [2**24 + 1, 1]])  # which float32 takes for equal
    data = Data(words, torch.zeros(2, dtype=torch.int64), "words")
    np.testing.assert_array_equal(data.sample_digests, sample_digests((words,), (torch.int64,)))
    assert len(set(data.sample_digests.tolist())) == 2


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 40), st.integers(0, 40), st.integers(0, 10**6))
def test_sets_join_as_sets_do_up_to_the_lower_limit(here: int, there: int, first: int, second: int, seed: int) -> None:
    digests = random_digests(here + there, seed)
    one = SeenSamples.of(digests[:here], "calibration").first(first)
    other = SeenSamples.of(digests[here:], "training").first(second)
    both = one | other
    assert both.limit == min(one.limit, other.limit)
    assert set(both.cells.tolist()) == {c for c in {*one.cells.tolist(), *other.cells.tolist()} if c < both.limit}
    assert both.cells.tolist() == sorted(both.cells.tolist())
    whole = SeenSamples.of(digests, "training")
    assert both.cells.tolist() == [cell for cell in whole.cells.tolist() if cell < both.limit]


def test_what_is_counted_is_what_is_there_and_each_sample_once() -> None:
    digests = random_digests(1000, 0)
    seen = SeenSamples.of(digests[:300], "calibration")
    assert seen.count(digests[:300]) == 300 and seen.count(digests[300:]) == 0
    assert seen.count(np.repeat(digests[:4], 50)) == 4
    few = seen.first(30)
    assert few.count(digests[:300]) == 30 and few.count(digests[300:]) == 0
    assert 0.04 < few.share < 0.2  # a tenth, up to chance
    assert NOTHING_SEEN.count(digests) == 0 and not NOTHING_SEEN


def test_chance_hits_are_as_many_as_the_known_probability_says() -> None:
    """In the first of 2^16 equal parts of all digests, where cells are dense enough for chance to be seen."""
    part = 2**16
    cells = np.unique(np.random.default_rng(0).integers(0, CELLS // part, 2**13))
    seen = SeenSamples(cells, CELLS // part)
    queries = random_digests(2**18, 1) >> np.uint64(16)  # all in that part: one in 2^16 others would be
    expected = len(queries) * seen.chance * part
    assert abs(expected - 128) < 1 and abs(seen.count(queries) - expected) < 4 * expected**0.5
    assert seen.share == 1 / part and seen.count(random_digests(2**18, 2)) <= 1


def test_modules_networks_and_copies_remember() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    seen = SeenSamples.of(random_digests(9, 0), "training")
    remember(model, seen)
    remember(model, SeenSamples.of(random_digests(4, 1), "search"))
    assert len(seen_by(model).cells) == 13 and seen_by(model).purposes == ("training", "search")
    net = tamis.trace(model, torch.randn(1, 3))
    for each in (net, net.with_params({"0.bias": torch.zeros(2)}), net.to(torch.float64), tamis.normalize(net)):
        assert len(each.seen.cells) == 13
    assert len(seen_by(copy.deepcopy(model)).cells) == 13
    wrapped = nn.Sequential(nn.Flatten(), model)
    assert len(seen_by(wrapped).cells) == len(tamis.trace(wrapped, torch.randn(1, 3)).seen.cells) == 13
    assert not seen_by(nn.Linear(1, 1)) and "seen" not in str(list(model.state_dict()))


def test_a_module_that_remembers_is_pickled_without_anything_of_ours() -> None:
    model = nn.Linear(2, 2)
    remember(model, SeenSamples.of(random_digests(9, 0), "training"))
    content = pickle.dumps(model)
    assert b"tamis." not in content
    assert len(seen_by(pickle.load(io.BytesIO(content))).cells) == 9
