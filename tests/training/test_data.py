"""Datasets by name and by path: what specs mean, what batches hold, and what is said of data that is not right."""

import io
import os
import sys
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pretrained import pretrained

from tamis.errors import DataNotFound, InvalidInput
from tamis.training import Data, data_files, data_folder, load_data, parse_spec
from tamis.training.data_loading import NORMALISATION
from tamis.training.digits import digits

IN_CI = os.environ.get("CI") == "true"  # where everything must be at hand: a missing file fails there
needs_pillow = pytest.mark.skipif(not IN_CI and find_spec("PIL") is None, reason="Pillow is not installed")


def skip_without(*files: Path) -> None:
    missing = [file.name for file in files if not file.exists()]
    if missing and not IN_CI:
        pytest.skip(f"not at hand: {', '.join(missing)}")


def images(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def labels(count: int, classes: int = 3) -> np.ndarray:
    return (np.arange(count) % classes).astype(np.uint8)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty data folder, and an empty working directory."""
    for name in ("cache", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TAMIS_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "cache"


@pytest.fixture
def flowers(cache):
    """A dataset by name: 12 colour images to train, 6 to test."""
    stored = {"train": images(12, 4, 5, 3, seed=1), "test": images(6, 4, 5, 3, seed=2)}
    for split, x in stored.items():
        np.savez_compressed(cache / f"flowers_{split}.npz", x=x, y=labels(len(x)))
    return stored


# -- batches -----------------------------------------------------------------------------------------------------------


def test_images_are_normalised_channel_by_channel():
    x = images(7, 3, 4, 5)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    data = Data(torch.from_numpy(x), torch.arange(7), "mine", mean, std)
    indices = torch.tensor([6, 0, 6, -3])
    inputs, targets = data.batch(indices)
    expected = (x / 255 - np.reshape(mean, (1, 3, 1, 1))) / np.reshape(std, (1, 3, 1, 1))
    assert inputs.dtype is torch.float32
    torch.testing.assert_close(inputs, torch.from_numpy(expected[indices]).float())
    assert targets.tolist() == [6, 0, 6, 4]
    torch.testing.assert_close(data.normalised(), torch.from_numpy(expected).float())


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 2, 2)])
def test_floats_are_normalised_if_asked_and_left_alone_otherwise(shape):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    plain = Data(x, torch.zeros(5, dtype=torch.int64), "mine")
    centred = Data(x, torch.zeros(5, dtype=torch.int64), "mine", mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 8.0))
    everything = torch.arange(5)
    assert torch.equal(plain.batch(everything)[0], x.float())
    per_channel = [(x[:, c] - m) / s for c, (m, s) in enumerate([(1.0, 2.0), (2.0, 4.0), (3.0, 8.0)])]
    torch.testing.assert_close(centred.batch(everything)[0], torch.stack(per_channel, 1).float())
    plain.normalised().zero_(), centred.normalised().zero_()
    assert torch.equal(x, before)


def test_images_without_mean_and_std_are_on_the_scale_0_to_1():
    data = Data(torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1), torch.zeros(3, dtype=torch.int64), "a")
    assert data.normalised().flatten().tolist() == pytest.approx([0, 0.2, 1])


def test_an_example_is_the_first_of_a_batch():
    data = Data(torch.from_numpy(images(3, 2, 4, 4)), torch.arange(3), "images", (0.5, 0.25), (0.1, 0.2))
    assert torch.equal(data.example, data.batch(torch.tensor([0, 1]))[0][:1])
    assert data.example.shape == (1, 2, 4, 4)


def test_the_number_of_classes_survives_a_slice():
    data = Data(torch.zeros(4, 2), torch.tensor([0, 1, 4, 0]), "mine")
    assert data.classes == data[:2].classes == data[torch.tensor([0])].classes == data.to("cpu").classes == 5


@pytest.mark.parametrize(
    "device", ["meta", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def test_on_a_device_images_stay_bytes(device):
    data = load_data("digits")
    stored = Data((data.inputs * 16).to(torch.uint8), data.labels, "bytes", (0.5,), (0.25,))
    moved = stored.to(device)
    inputs, targets = moved.batch(torch.arange(4))
    assert moved.inputs.dtype is torch.uint8 and moved.name == "bytes"
    assert {t.device.type for t in (moved.inputs, moved.labels, inputs, targets)} == {device}
    if device != "meta":
        torch.testing.assert_close(inputs.cpu(), stored.batch(torch.arange(4))[0])


def test_what_is_no_data_is_refused():
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(
        InvalidInput, match=r"'mine' needs an int64 label for each input, .* \(2,\) for inputs \(3, 2\)"
    ):
        Data(x, y[:2], "mine")
    with pytest.raises(InvalidInput, match=r"torch.int32"):
        Data(x, y.int(), "mine")
    with pytest.raises(InvalidInput, match=r"'mine' needs a mean and a std for each channel"):
        Data(x, y, "mine", mean=(1.0,), std=(1.0,))
    with pytest.raises(InvalidInput, match="'mine' is empty"):
        Data(x[:0], y[:0], "mine")
    with pytest.raises(InvalidInput, match="by a slice or by a tensor with one axis, got 1"):
        Data(x, y, "mine")[1]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.ones(2, dtype=torch.bool), "'mine' has 3 samples and needs a boolean for each, got 2"),
        (torch.tensor([0, 3]), "'mine' has the samples 0 to 2, got the index 3"),
        (torch.tensor([-4, 1]), "'mine' has the samples 0 to 2, got the index -4"),
        (torch.tensor([1.5]), "'mine' can be indexed by booleans, int32 or int64, got torch.float32"),
        (slice(None, None, 0), r"'mine' cannot be cut by slice\(None, None, 0\): slice step cannot be zero"),
        (slice("a", None), r"'mine' cannot be cut by slice\('a', None, None\): slice indices must be integers"),
    ],
)
def test_an_index_that_is_none_is_refused(index, message):
    data = Data(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), "mine")
    with pytest.raises(InvalidInput, match=message):
        data[index]


def test_a_digest_is_of_what_is_stored_and_of_its_normalisation():
    images = torch.arange(48, dtype=torch.uint8).view(3, 4, 2, 2)
    data = Data(images, torch.tensor([0, 1, 1]), "mine", mean=(0.5,) * 4, std=(0.5,) * 4)
    laid_out = replace(data, inputs=images.to(memory_format=torch.channels_last), name="another name")
    assert laid_out.digest() == data.digest()
    others = [
        replace(data, inputs=images + 1),
        replace(data, inputs=images.view(3, 4, 1, 4)),
        replace(data, inputs=images.float()),
        replace(data, inputs=images.bfloat16()),
        replace(data, labels=torch.tensor([1, 0, 1])),
        replace(data, mean=(0.4,) * 4),
        replace(data, std=(0.4,) * 4),
    ]
    assert len({data.digest(), *(other.digest() for other in others)}) == 1 + len(others)


# -- slices ------------------------------------------------------------------------------------------------------------

bounds = st.none() | st.integers(-8, 8)
slices = st.builds(slice, bounds, bounds, st.none() | st.integers(-4, 4).filter(bool))


def written(chosen: slice) -> str:
    numbers = ["" if n is None else str(n) for n in (chosen.start, chosen.stop, chosen.step)]
    return "[" + ":".join(numbers if chosen.step is not None else numbers[:2]) + "]"


@settings(max_examples=20)
@given(
    part=st.floats(0.1, 0.85),
    seed=st.integers(0, 2**63 - 1),
    before=st.sampled_from(["", "[:60]", "[::7][3:]", "@mean=0.5@std=0.25", "@rest=0.5,1"]),
)
def test_what_is_set_aside_is_found_again_by_its_name(part, seed, before):
    data = load_data(f"digits:test{before}")
    held_out, rest = data.set_aside(part, seed)
    for each in (held_out, rest):
        again = load_data(each.name)
        assert again.name == each.name and again.digest() == each.digest()
    assert sorted([*held_out.sample_digests, *rest.sample_digests]) == sorted(data.sample_digests)
    assert load_data(f"{rest.name}[2:5]").digest() == rest[2:5].digest()
    assert parse_spec(f"digits@rest={part!r},{seed}").splits() == {"train": f"digits@rest={part!r},{seed}"}


@settings(max_examples=40)
@given(chosen=st.lists(slices, min_size=1, max_size=3))
def test_slices_are_pythons_and_names_lead_back(chosen):
    expected = list(range(360))[100:106]  # few enough for some slices to be empty
    data = load_data("digits:test[100:106]")
    spec = "digits:test[100:106]" + "".join(map(written, chosen))
    for each in chosen:
        expected = expected[each]
        if not expected:
            with pytest.raises(InvalidInput, match="is empty"):
                data[each]
            with pytest.raises(InvalidInput) as caught:
                load_data(spec)
            assert f"'{spec}' is empty" in str(caught.value)
            return
        data = data[each]
    everything, targets = digits("test")
    loaded = load_data(spec)
    assert data.name == loaded.name == spec
    for one in (data, loaded):
        assert torch.equal(one.inputs, everything[expected]) and torch.equal(one.labels, targets[expected])


def test_a_tensor_of_indices_or_booleans():
    data = load_data("digits:test")
    some = data[torch.tensor([5, 0, 5])]
    assert torch.equal(some.inputs, data.inputs[[5, 0, 5]]) and torch.equal(some.labels, data.labels[[5, 0, 5]])
    sevens = data[data.labels == 7]
    assert len(sevens) == (data.labels == 7).sum() and set(sevens.labels.tolist()) == {7}
    with pytest.raises(InvalidInput, match=r"digits:test\[3 chosen\]"):
        load_data(some.name)  # nobody could know which ones
    with pytest.raises(InvalidInput, match=r"'digits:test\[0 chosen\]' is empty"):
        data[data.labels == 11]


def test_a_slice_does_not_hold_on_to_the_rest(flowers):
    for some in (load_data("flowers[:2]"), load_data("flowers")[:2]):
        assert some.inputs.untyped_storage().nbytes() == some.inputs.nelement() == 2 * 3 * 4 * 5


@pytest.mark.parametrize(
    "spec",
    [
        "digits[3]",
        "digits:test[a:b]",
        "digits[:5",
        "digits:5]",
        "digits[:5]:test",
        "digits[1:2:3:4]",
        "digits[--1:]",
        "digits[1.5:]",
        "digits[]",
    ],
)
def test_malformed_slices(cache, spec):
    with pytest.raises(InvalidInput) as caught:
        load_data(spec)
    assert f"[start:stop:step] at the end, after the split, got '{spec}'" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digits[::0]", r"the step of a slice cannot be 0, got 'digits\[::0\]'"),
        ("digits:test[360:]", r"'digits:test\[360:\]' is empty: it is cut from 360 samples"),
        ("digits:validation", "'digits:validation': there is no split 'validation'; write digits:train or digits:test"),
        ("digits:", "there is no split ''"),
        ("digits:test:test", "'digits:test:test': there is no split"),
        ("", "must be a name or a path, got ''"),
        (":test", "must be a name or a path, got ':test'"),
        ("[:3]", r"must be a name or a path, got '\[:3\]'"),
        (None, "must be a name or a path, as text, got None"),
        (5, "must be a name or a path, as text, got 5"),
    ],
)
def test_specs_that_are_none(cache, spec, message):
    with pytest.raises(InvalidInput, match=message):
        load_data(spec)


# -- names -------------------------------------------------------------------------------------------------------------


def test_digits_are_as_digits_gives_them(cache):
    for spec, split in [("digits", "train"), ("digits:train", "train"), ("digits:test", "test")]:
        data = load_data(spec)
        inputs, targets = digits(split)
        assert torch.equal(data.normalised(), inputs) and torch.equal(data.labels, targets)
        assert (data.name, data.classes, data.mean, data.std) == (spec, 10, (), ())


def test_any_name_in_the_data_folder(flowers):
    for spec, split in [("flowers", "train"), ("flowers:train", "train"), ("flowers:test", "test")]:
        data = load_data(spec)
        assert data.inputs.is_contiguous() and data.inputs.dtype is torch.uint8
        assert np.array_equal(data.inputs.numpy(), flowers[split].transpose(0, 3, 1, 2))
        assert data.labels.tolist() == [0, 1, 2] * (len(data) // 3) and data.labels.dtype is torch.int64
        assert (data.name, data.classes) == (spec, 3)
        assert (data.mean, data.std) == ((0, 0, 0), (1, 1, 1))  # nobody knows better: the scale 0..1
    assert repr(load_data("flowers:test[:2]")) == "Data('flowers:test[:2]', 2×3×4×5 uint8, 3 classes)"


@pytest.mark.parametrize("name", NORMALISATION)
def test_known_names_bring_their_mean_and_std(cache, name):
    mean, std = NORMALISATION[name]
    x = images(4, 6, 6, len(mean))
    np.savez(cache / f"{name}_train.npz", x=x.squeeze(3) if len(mean) == 1 else x, y=labels(4))
    data = load_data(name)
    assert data.inputs.shape == (4, len(mean), 6, 6)
    assert (data.mean, data.std) == (mean, std)
    np.savez(cache / f"{name}_train.npz", x=x, y=labels(4), mean=np.full(len(mean), 0.5), std=np.ones(len(mean)))
    assert load_data(name).mean == (0.5,) * len(mean)
    np.savez(cache / f"{name}_train.npz", x=x / 255, y=labels(4))  # floats are as their owner wants them
    assert load_data(name).mean == ()


def test_a_name_means_the_same_wherever_one_works(flowers):
    Path("digits").mkdir(), Path("flowers").mkdir(), Path("own").mkdir()
    for name in ("digits", "flowers", "own"):
        np.savez(Path(name) / "train.npz", x=np.ones((2, 3)), y=[0, 1])
    assert len(load_data("digits")) == 1437 and len(load_data("flowers")) == 12
    assert len(load_data("./digits")) == len(load_data("./flowers")) == len(load_data("own")) == 2


def test_data_that_is_not_there(flowers, cache, monkeypatch, tmp_path):
    (cache / "birds_train.npz").touch()
    with pytest.raises(DataNotFound) as caught:
        load_data("Flower:test[:3]")
    for part in (
        "no file Flower_test.npz in",
        str(cache),
        "which $TAMIS_DATA names",
        "x (uint8 images",
        "y (N integer",
    ):
        assert part in str(caught.value)
    assert "datasets there: birds, flowers; digits ships with tamis; did you mean flowers?" in str(caught.value)
    with pytest.raises(DataNotFound, match=r"no file birds_test\.npz in .*; digits ships with tamis$"):
        load_data("birds:test")
    with pytest.raises(DataNotFound, match=r"did you mean digits\?$"):
        load_data("digit")
    for folder in (None, ""):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("TAMIS_DATA") if folder is None else monkeypatch.setenv("TAMIS_DATA", folder)
        with pytest.raises(DataNotFound, match=r"the default; \$TAMIS_DATA can name another.* datasets there: none;"):
            load_data("flowers")
        assert data_folder() == tmp_path / ".cache" / "tamis" / "data"


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(cache):
    """A file in the working directory."""
    x = images(6, 4, 5)
    np.savez("mine.npz", x=x, y=labels(6))
    return x


def test_a_file_of_ones_own(mine, monkeypatch):
    monkeypatch.setenv("HOME", os.getcwd())
    np.savez("odd:name[1].npz", x=mine, y=labels(6))
    Path("mine.data").write_bytes(Path("mine.npz").read_bytes())
    for path in ("mine.npz", "./mine.npz", os.path.abspath("mine.npz"), "~/mine.npz", "mine.data", "odd:name[1].npz"):
        data = load_data(path)
        assert np.array_equal(data.inputs.numpy(), mine[:, None])
        assert (data.name, data.mean, data.std) == (path, (0.0,), (1.0,))
        assert load_data(path + "[1::2]").labels.tolist() == [1, 0, 2]


def test_features_of_ones_own(cache):
    x = np.random.default_rng(0).normal(size=(4, 7))
    for dtype in ("float16", "float32", "float64", ">f4"):
        np.savez("mine.npz", x=np.asfortranarray(x.astype(dtype)), y=np.array([0, 3, 1, 3]))
        data = load_data("mine.npz")
        assert data.inputs.dtype is torch.float32 and data.inputs.is_contiguous()
        assert np.array_equal(data.inputs.numpy(), x.astype(dtype).astype("float32"))
        assert (data.mean, data.std, data.classes) == ((), (), 4)
    np.savez("mine.npz", x=x, y=labels(4), mean=np.arange(7), std=np.full(7, 2))
    torch.testing.assert_close(load_data("mine.npz").normalised(), torch.tensor((x - np.arange(7)) / 2).float())


@pytest.mark.parametrize("separator", ["", "/"])
def test_a_folder_with_splits(mine, separator):
    Path("both").mkdir()
    statistics = {"mean": np.array([0.25]), "std": np.array([0.5])}
    np.savez("both/train.npz", x=mine, y=labels(6), **statistics)
    np.savez("both/test.npz", x=mine[:4], y=labels(4))
    source = "./both" + separator
    assert len(load_data(source)) == len(load_data(f"{source}:train")) == 6
    assert len(load_data(f"{source}:test")) == 4
    assert load_data(f"{source}:test").mean == load_data(source).mean == (0.25,)  # test as train
    np.savez("both/test.npz", x=mine[:4], y=labels(4), mean=np.array([0.75]), std=np.array([1.0]))
    assert load_data(f"{source}:test").mean == (0.75,)
    Path("both/test.npz").unlink()
    with pytest.raises(DataNotFound, match=r"'\./both/?:test' needs 'both/test\.npz', which is not there"):
        load_data(f"{source}:test")


def test_a_folder_called_like_a_split_or_a_slice(mine):
    for name in ("runs:test", "runs[1:2]"):
        Path(name).mkdir()
        np.savez(Path(name) / "train.npz", x=mine, y=labels(6))
        assert len(load_data(f"./{name}/")) == 6
        assert len(load_data(f"./{name}/:train[:2]")) == 2


def test_paths_that_lead_nowhere(mine):
    with pytest.raises(DataNotFound) as caught:
        load_data("./other.npz[:3]")
    assert f"there is no '{os.path.abspath('other.npz')}'" in str(caught.value)
    with pytest.raises(InvalidInput, match=r"'\./mine\.npz:test': 'mine\.npz' is one file and has no splits"):
        load_data("./mine.npz:test")
    with pytest.raises(InvalidInput, match=r"'\./mine\.npz:validation': there is no split 'validation'"):
        load_data("./mine.npz:validation")
    with pytest.raises(InvalidInput, match=r"after the split, got '\./mine\.npz\[3\]'"):
        load_data("./mine.npz[3]")
    Path("empty").mkdir()
    with pytest.raises(InvalidInput, match="'empty' has no images: they go into one sub-folder per class"):
        load_data("./empty")


# -- files that are not right ------------------------------------------------------------------------------------------

GOOD = {"x": images(4, 5, 5, 3), "y": labels(4)}
BAD_ARRAYS = {
    "no x": ({"x": None}, "has no array x; it must hold x "),
    "neither": ({"x": None, "y": None, "z": labels(4)}, "has no array x and no y"),
    "other lengths": ({"y": labels(3)}, "has 4 inputs in x and 3 labels in y"),
    "nothing": ({"x": images(0, 5, 5), "y": labels(0)}, r"x in .* has shape \(0, 5, 5\)"),
    "objects": ({"y": np.array([0, 1, None, "a"])}, "cannot be read .*Object arrays cannot be loaded"),
    "not a number": ({"x": np.array([[0.0], [1.0], [np.nan], [2.0]])}, "values that are not finite"),
    "infinite in float32": ({"x": np.full((4, 1), 1e300)}, "values that are not finite in float32"),
    "integers": ({"x": np.zeros((4, 5, 5), np.int64)}, "x in .* is int64; "),
    "text": ({"x": np.full((4, 2), "a")}, "x in .* is <U1; "),
    "no axes": ({"x": np.float32(3)}, r"x in .* has shape \(\)"),
    "flat images": ({"x": images(4, 25)}, r"must be images N×H×W or N×H×W×C, got shape \(4, 25\)"),
    "channels first": ({"x": images(4, 3, 9, 9)}, r"\(4, 3, 9, 9\), .* with 9 channels; channels go last"),
    "negative labels": ({"y": np.array([0, 1, -2, 1])}, "must count from 0 on, got -2 to 1"),
    "huge labels": ({"y": np.array([0, 1, 2, 2**63], np.uint64)}, "must count from 0 on, got 0 to 9223372036854775808"),
    "fractional labels": ({"y": np.array([0, 1, 0.5, 1])}, "must be N integer labels, got float64"),
    "one-hot labels": ({"y": np.eye(4, dtype=int)}, r"must be N integer labels, got int64 of shape \(4, 4\)"),
    "mean alone": ({"mean": np.ones(3)}, "has the array mean alone"),
    "one mean": ({"mean": np.ones(1), "std": np.ones(3)}, "mean in .* must be 3 finite numbers, one per channel"),
    "mean is text": ({"mean": np.full(3, "a"), "std": np.ones(3)}, "mean in .* must be 3 finite numbers"),
    "infinite std": ({"mean": np.ones(3), "std": np.full(3, np.inf)}, "std in .* must be 3 finite numbers"),
    "std of zero": ({"mean": np.ones(3), "std": np.zeros(3)}, r"std in .* must be positive, got \[0.0, 0.0, 0.0\]"),
    "mean of bytes": ({"mean": np.full(3, 125.0), "std": np.ones(3)}, "must be on the scale 0..1"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays_that_are_not_right(cache, case):
    changes, message = BAD_ARRAYS[case]
    arrays = {name: array for name, array in {**GOOD, **changes}.items() if array is not None}
    np.savez("bad.npz", **arrays)
    with pytest.raises(InvalidInput, match=message) as caught:
        load_data("./bad.npz")
    assert "'bad.npz'" in str(caught.value)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def claiming(shape: str) -> bytes:
    """The bytes of x with another shape in the header."""
    content, told = npy(GOOD["x"]), b"(4, 5, 5, 3), }"
    padded = told + b" " * 20
    assert padded in content
    return content.replace(padded, f"{shape}, }}".encode().ljust(len(padded)))


WHOLE = archive(x=npy(GOOD["x"]), y=npy(GOOD["y"]))
BROKEN = {
    "empty": b"",
    "text": b"not an archive",
    "a lone array": npy(GOOD["x"]),
    "truncated": WHOLE[: len(WHOLE) // 2],
    "changed": WHOLE[:200] + bytes(byte ^ 255 for byte in WHOLE[200:210]) + WHOLE[210:],
    "members that are no arrays": archive(x=b"hello", y=b"world"),
    "a short array": archive(x=npy(GOOD["x"])[:-10], y=npy(GOOD["y"])),
    "a giant": archive(x=claiming("(9999999999999, 5, 5, 3)"), y=npy(GOOD["y"])),
    "a shape that is none": archive(x=claiming("(4, -5, 5, 3)"), y=npy(GOOD["y"])),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(cache, case):
    (cache / "broken_train.npz").write_bytes(BROKEN[case])
    with pytest.raises(InvalidInput) as caught:
        load_data("broken")
    assert str(cache / "broken_train.npz") in str(caught.value)


@given(place=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_gives_data_or_a_clear_error(tmp_path_factory, place, byte):
    path = tmp_path_factory.mktemp("changed") / "mine.npz"
    path.write_bytes(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])
    try:
        data = load_data(str(path))
    except InvalidInput as error:
        assert str(path) in str(error)
    else:
        assert np.array_equal(data.inputs.numpy(), GOOD["x"].transpose(0, 3, 1, 2))


# -- folders of images -------------------------------------------------------------------------------------------------


def save_image(path: str, pixels: np.ndarray, mode: str | None = None) -> np.ndarray:
    from PIL import Image

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path)
    return pixels


@needs_pillow
def test_colour_images_in_a_folder_per_class(cache):
    first = save_image("pets/cat/b.png", images(4, 6, 3, seed=1))
    second = save_image("pets/cat/a.PNG", images(4, 6, seed=2))  # grey, becomes colour among colours
    third = save_image("pets/ant/z.png", images(4, 6, 4, seed=3))  # transparency is left out
    Path("pets/cat/notes.txt").write_text("no image")
    Path("pets/cat/._b.png").write_text("no image either")
    Path("pets/.hidden").mkdir()
    Path("pets/dog").mkdir()
    data = load_data("pets")
    expected = [third[..., :3], np.repeat(second[..., None], 3, 2), first]
    assert np.array_equal(data.inputs.numpy(), np.stack(expected).transpose(0, 3, 1, 2))
    assert data.labels.tolist() == [0, 1, 1]
    assert (data.classes, data.mean, data.std) == (3, (0, 0, 0), (1, 1, 1))
    assert load_data("./pets[::2]").labels.tolist() == [0, 1]
    with pytest.raises(InvalidInput, match=r"'pets:test': 'pets' has neither train nor test in it; leave out :test"):
        load_data("pets:test")


@needs_pillow
def test_grey_images_with_splits_number_classes_alike(cache):
    one, two = save_image("marks/train/a/1.png", images(5, 4)), save_image("marks/train/c/1.bmp", images(5, 4, seed=1))
    three = save_image("marks/test/b/1.png", images(5, 4, seed=2))
    train, test = load_data("./marks"), load_data("./marks:test")
    assert np.array_equal(train.inputs.numpy(), np.stack([one, two])[:, None])
    assert np.array_equal(test.inputs.numpy(), three[None, None])
    assert train.labels.tolist() == [0, 2] and test.labels.tolist() == [1]  # b is 1 though train has none
    assert train.classes == test.classes == 3
    Path("marks/train").rename("marks/elsewhere")
    with pytest.raises(DataNotFound, match=r"needs the folder 'marks/train', which is not there; 'marks/test' is"):
        load_data("./marks")


@needs_pillow
def test_images_that_are_not_right(cache):
    save_image("pets/cat/1.png", images(4, 6, 3))
    save_image("pets/dog/1.png", images(5, 6, 3))
    with pytest.raises(InvalidInput, match=r"one size: 'pets/cat/1\.png' is 6×4, 'pets/dog/1\.png' is 6×5"):
        load_data("pets")
    save_image("pets/dog/1.png", np.zeros((4, 6), np.uint16))
    with pytest.raises(InvalidInput, match=r"'pets/dog/1\.png' has more than 8 bits per channel"):
        load_data("pets")
    whole = Path("pets/cat/1.png").read_bytes()
    for broken in (b"", b"no image", whole[: len(whole) // 2]):
        Path("pets/dog/1.png").write_bytes(broken)
        with pytest.raises(InvalidInput, match=r"'pets/dog/1\.png' cannot be read as an image"):
            load_data("pets")


def test_without_pillow_the_error_says_so(cache, monkeypatch):
    Path("pets/cat").mkdir(parents=True)
    Path("pets/cat/1.png").touch()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)  # makes importing it raise
    with pytest.raises(InvalidInput, match=r"reading 'pets/cat/1\.png' needs Pillow, .*: pip install pillow"):
        load_data("pets")


@needs_pillow
def test_images_of_several_sizes_are_resized_and_normalised(cache):
    from PIL import Image

    first, second = save_image("pets/ant/1.png", images(9, 6, 3, seed=1)), save_image("pets/bee/1.png", images(4, 5, 3))
    data = load_data("pets@resize=3x4@mean=0.5@std=0.2,0.25,0.5")
    resized = [
        np.asarray(Image.fromarray(pixels).resize((4, 3), Image.Resampling.BILINEAR)) for pixels in (first, second)
    ]
    assert np.array_equal(data.inputs.numpy(), np.stack(resized).transpose(0, 3, 1, 2))
    assert (data.mean, data.std) == ((0.5, 0.5, 0.5), (0.2, 0.25, 0.5))
    expected = (data.inputs.float() / 255 - 0.5) / torch.tensor([0.2, 0.25, 0.5]).view(3, 1, 1)
    assert torch.allclose(data.normalised(), expected, rtol=1e-6, atol=1e-6)
    one = data[1:]
    assert one.name.endswith("@std=0.2,0.25,0.5[1:]") and torch.equal(load_data(one.name).inputs, one.inputs)
    assert load_data("pets@resize=5").inputs.shape == (2, 3, 5, 5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("flowers@resize=4", "only folders of images are resized, and 'flowers' is none"),
        ("digits@resize=4", "only folders of images are resized"),
        ("flowers@resize=0", "resize must be a size or HEIGHTxWIDTH in pixels"),
        ("flowers@resize=2x2x2", "resize must be a size or HEIGHTxWIDTH in pixels"),
        ("flowers@resize=99999", "at most 32,768; got '99999'"),
        ("flowers@resize=small", "resize takes numbers, as @resize=64@mean=0.5@std=0.25@rest=0.5,0 at the end"),
        ("flowers@rest=half,0", "rest takes numbers, as "),
        ("flowers@rest=0.5", "rest must be a part of the samples, above 0 and below 1, a comma and a seed"),
        ("flowers@held_out=1.5,0", "held_out must be a part of the samples, above 0 and below 1"),
        ("flowers@held_out=0.5,-1", "held_out must be a part of the samples"),
        ("flowers@rest=0.01,0", "has 12 samples, of which 0.01 cannot be held out"),
        ("flowers@mean=0.5", "mean and std go together"),
        ("flowers@mean=0.5@std=0", "std must be positive numbers"),
        ("flowers@mean=1..2@std=1", "mean must be numbers with commas between"),
        ("flowers@mean=127@std=50", "mean must be on the scale 0..1"),
        ("flowers@mean=0.5,0.5@std=1", "needs a mean and a std for each channel"),
    ],
)
def test_settings_that_cannot_be(flowers, spec, message):
    with pytest.raises(InvalidInput, match=message):
        load_data(spec)


def test_settings_take_the_place_of_what_is_stored(flowers):
    data = load_data("flowers:test[:3]@mean=0.1,0.2,0.3@std=0.5")
    assert (data.mean, data.std, len(data)) == ((0.1, 0.2, 0.3), (0.5, 0.5, 0.5), 3)


@pytest.mark.parametrize(
    ("spec", "splits"),
    [
        ("flowers", {"train": "flowers:train", "test": "flowers:test"}),
        ("pets@resize=8", {"train": "pets:train@resize=8", "test": "pets:test@resize=8"}),
        ("flowers:train", {"train": "flowers:train"}),
        ("flowers[:3]", {"train": "flowers[:3]"}),
        ("./x.npz", {"train": "./x.npz"}),
        ("x.npy,y.npy", {"train": "x.npy,y.npy"}),
        ("mydata:loader", {"train": "mydata:loader"}),
    ],
)
def test_both_splits_of_what_names_neither(flowers, spec, splits):
    assert parse_spec(spec).splits() == splits


# -- .npy and Python ---------------------------------------------------------------------------------------------------


def test_arrays_in_files_of_their_own(cache):
    x, y = images(6, 4, 5, 3), labels(6)
    np.save("x.npy", x)
    np.save("y.npy", y)
    data = load_data("x.npy,./y.npy[1:]")
    assert np.array_equal(data.inputs.numpy(), x[1:].transpose(0, 3, 1, 2)) and data.labels.tolist() == y[1:].tolist()
    alone = load_data("x.npy", labelled=False)
    assert not alone.has_labels and not alone.labels.any() and data.has_labels
    with pytest.raises(InvalidInput, match=r"'x\.npy' has no labels: name the file .* as x\.npy,labels\.npy"):
        load_data("x.npy")
    np.save("y.npy", y[:5])
    with pytest.raises(InvalidInput, match=r"'x\.npy' has 6 inputs and 'y\.npy' 5 labels"):
        load_data("x.npy,y.npy")
    with pytest.raises(DataNotFound, match=r"needs '.*z\.npy', which is not there"):
        load_data("x.npy,z.npy")
    for wrong in (np.array([None, 1]), np.array(["a"])):
        np.save("w.npy", wrong, allow_pickle=True)
        with pytest.raises(InvalidInput, match=r"'w\.npy' "):
            load_data("w.npy", labelled=False)
    Path("w.npy").write_bytes(b"no array")
    with pytest.raises(InvalidInput, match=r"'w\.npy' is not an \.npy file"):
        load_data("w.npy", labelled=False)


@pytest.fixture
def mydata(cache, monkeypatch):
    """A module of the user's with data in several forms, forgotten after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mydata.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "x, y = torch.arange(12.0).view(6, 2), torch.arange(6) % 3\n"
        "dataset = TensorDataset(x, y)\n"
        "test_loader = DataLoader(dataset, 4)\n"
        "def make():\n    return [{'pixels': x, 'label': y}]\n"
        "def broken():\n    raise RuntimeError('no disk')\n"
        "class parts:\n    pair = (x, y)\n    inputs = x\n"
    )
    yield
    sys.modules.pop("mydata", None)


@pytest.mark.parametrize("name", ["dataset", "test_loader", "make", "parts.pair"])
def test_data_from_a_module(mydata, name):
    data = load_data(f"mydata:{name}[2:]")
    assert torch.equal(data.normalised(), torch.arange(4.0, 12).view(4, 2)) and data.labels.tolist() == [2, 0, 1, 2]
    assert (data.name, data.classes) == (f"mydata:{name}[2:]", 3)


def test_data_from_a_module_that_will_not_do(mydata):
    assert not load_data("mydata:parts.inputs", labelled=False).has_labels
    cases = {
        "mydata:parts.inputs": "'mydata:parts.inputs' has no labels, which are needed here",
        "mydata:loader": "no dataset 'mydata' with a split 'loader', and nothing .* did you mean test_loader",
        "yourdata:loader": "no dataset 'yourdata' with a split 'loader', .* no module 'yourdata'",
        "mydata:broken": r"mydata:broken\(\) failed: RuntimeError: no disk",
        "mydata:parts": "'mydata:parts' must be a tensor of inputs",
        "mydata:make@resize=4": "only folders of images are resized",
    }
    for spec, message in cases.items():
        with pytest.raises(InvalidInput, match=message):
            load_data(spec)
    with pytest.raises(
        DataNotFound, match=r"what is in mydata\.py, take another name than test, as mydata:test_loader"
    ):
        load_data("mydata:test")


def test_a_name_goes_before_a_module(mydata, flowers):
    Path("flowers.py").write_text("raise AssertionError('imported')\n")
    with pytest.raises(InvalidInput, match="there is no split 'loader'; write flowers:train or flowers:test"):
        load_data("flowers:loader")


# -- the real ones -----------------------------------------------------------------------------------------------------

SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


@pytest.mark.parametrize("name", SHAPES)
def test_the_real_test_sets(name):
    skip_without(data_folder() / f"{name}_test.npz")
    data = load_data(f"{name}:test")
    assert data.inputs.shape == (10_000, *SHAPES[name]) and data.inputs.dtype is torch.uint8
    assert data.classes == 10
    fewest = 892 if name == "mnist" else 1000  # of fives in MNIST; the others have as many of each class
    assert int(data.labels.bincount().min()) == fewest


@pytest.mark.parametrize(("name", "size"), [("mnist", 60_000), ("fashion_mnist", 60_000)])
def test_the_training_sets_have_the_mean_and_std_that_they_are_normalised_by(name, size):
    """CIFAR-10's are ImageNet's: for those the pretrained networks are the test."""
    skip_without(data_folder() / f"{name}_train.npz")
    data = load_data(name)
    assert len(data) == size
    shares = data.inputs.flatten().bincount(minlength=256).double() / data.inputs.numel()  # of each shade
    grey = torch.arange(256, dtype=torch.float64) / 255
    mean = float(shares @ grey)
    assert data.mean == (pytest.approx(mean, abs=5e-5),)
    assert data.std == (pytest.approx(float(shares @ (grey - mean).square()) ** 0.5, abs=5e-5),)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "right"), [("resnet20", 9173), ("resnet32", 9263)])
def test_pretrained_networks_have_their_published_accuracy(name, right):
    skip_without(data_folder() / "cifar10_test.npz")
    model = pretrained(name).eval()
    data = load_data("cifar10:test")
    found = 0
    with torch.inference_mode():
        for indices in torch.arange(len(data)).split(500):
            inputs, targets = data.batch(indices)
            found += int((model(inputs).argmax(1) == targets).sum())
    assert abs(found - right) <= 2  # an image on the border may fall to the other side with another order of sums


def test_an_npz_file_that_would_fill_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "MOST_INFLATED", 2**20)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((2**17, 8), np.float32), y=labels(2**17))
    np.savez_compressed(tmp_path / "small.npz", x=np.zeros((2**10, 8)), y=labels(2**10))
    np.savez(tmp_path / "plain.npz", x=np.zeros((2**18, 8), np.float32), y=labels(2**18))
    for name in ("small", "plain"):
        assert len(load_data(str(tmp_path / f"{name}.npz"))) > 0
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was read"))
    wanted = r"^x in '.*bomb\.npz' has 4,\d{3} bytes there and would have 4,194,432 in memory: .* numpy\.savez"
    with pytest.raises(InvalidInput, match=wanted):
        load_data(str(tmp_path / "bomb.npz"))
