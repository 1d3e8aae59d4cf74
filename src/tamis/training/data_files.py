"""Files `.npz` and `.npy` and folders of images are read with suspicion, and errors name the file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tamis.errors import InvalidInput

NPZ_CONTENT = "x (uint8 images N×H×W or N×H×W×C, or floats N×…) and y (N integer labels from 0 on)"
MOST_CHANNELS = 4  # of images; with more in the last place, they stand in the second by mistake
MOST_INFLATED = 2**28  # bytes that an array of an .npz file may have, however far it was compressed
FARTHEST_INFLATED = 100  # times its bytes in the file: the most that a larger one may have
IMAGE_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
GREY_MODES = ("1", "L", "LA")
DEEP_MODES = ("I", "F")  # also I;16 and its kin: Pillow would clip their values to 8 bits

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std per channel; both empty: unknown


class RawData(NamedTuple):
    """Raw data is what a file holds: inputs (uint8 N×C×H×W, or float32 N×…), int64 labels, classes, mean and std.

    Where `has_labels` is False, the labels are 0 and mean nothing.
    """

    inputs: Tensor
    labels: Tensor
    classes: int
    statistics: Statistics = ((), ())
    has_labels: bool = True


# -- .npz --------------------------------------------------------------------------------------------------------------


def read_npz(path: Path, labelled: bool = True) -> RawData:
    """Read the arrays x and y of a `.npz` file, and mean and std where it has them.

    Args:
        path: the file.
        labelled: whether y must be there; if not, labels are 0 where it is missing.

    Raises:
        InvalidInput: the file is broken, or holds something else.
    """
    arrays = _read_arrays(path, ("x", "y"))
    # Whether labels are real is noted before the placeholders are put in.
    has_labels = "y" in arrays
    if not labelled and arrays.keys() == {"x"}:
        arrays["y"] = _make_placeholder_labels(arrays["x"])
    if missing := {"x", "y"} - arrays.keys():
        raise InvalidInput(f"'{path}' has no array {' and no '.join(sorted(missing))}; it must hold {NPZ_CONTENT}")
    inputs, labels = _check_inputs(path, arrays["x"]), _check_labels(path, arrays["y"])
    if len(inputs) != len(labels):
        raise InvalidInput(f"'{path}' has {len(inputs)} inputs in x and {len(labels)} labels in y: one each is needed")
    return RawData(inputs, labels, int(labels.max()) + 1, read_statistics(path, inputs), has_labels)


def read_npy(path: Path, labels: Path | None, labelled: bool = True) -> RawData:
    """Read the inputs in one `.npy` file, laid out like x in an `.npz` file, and the labels in another.

    Args:
        path: the inputs.
        labels: the labels; None: there are none.
        labelled: whether there must be.

    Raises:
        InvalidInput: a file is broken, or holds something else.
    """
    if labels is None and labelled:
        raise InvalidInput(f"'{path}' has no labels: name the file that has them after a comma, as {path},labels.npy")
    x = _read_array(path)
    y = _make_placeholder_labels(x) if labels is None else _read_array(labels)
    inputs, classes = _check_inputs(path, x), _check_labels(labels or path, y)
    if len(inputs) != len(classes):
        raise InvalidInput(
            f"'{path}' has {len(inputs)} inputs and '{labels}' {len(classes)} labels: one each is needed"
        )
    return RawData(inputs, classes, int(classes.max()) + 1, has_labels=labels is not None)


def _read_array(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        try:
            # Without pickles, which can run code while they are read.
            return np.lib.format.read_array(file, allow_pickle=False)
        except Exception as error:  # numpy raises whatever a broken file made it trip over
            raise InvalidInput(f"'{path}' is not an .npy file, as numpy.save writes them: {error}") from error


def _make_placeholder_labels(x: np.ndarray) -> np.ndarray:
    """Return zeros in place of unknown labels."""
    return np.zeros(len(x) if x.ndim else 0, dtype=np.int64)


def read_statistics(path: Path, inputs: Tensor) -> Statistics:
    """Read mean and std per channel of `inputs` from a `.npz` file; both are empty where it has none."""
    # Read by themselves, since test data may be normalised by the statistics of another file.
    arrays = _read_arrays(path, ("mean", "std"))
    if not arrays:
        return (), ()
    if len(arrays) == 1:
        raise InvalidInput(f"'{path}' has the array {next(iter(arrays))} alone: mean and std go together")
    channels = inputs.shape[1]
    for name, values in arrays.items():
        if values.dtype.kind not in "fiu" or values.shape != (channels,) or not np.isfinite(values).all():
            got = f"{values.dtype} of shape {values.shape}"
            raise InvalidInput(f"{name} in '{path}' must be {channels} finite numbers, one per channel, got {got}")
    mean, std = arrays["mean"], arrays["std"]
    if (std <= 0).any():
        raise InvalidInput(f"std in '{path}' must be positive, got {std.tolist()}")
    # A mean of 127, on the scale 0..255, is a mistake that would not fail, but train on nearly constant images.
    if inputs.dtype is torch.uint8 and not ((mean >= 0) & (mean <= 1)).all():
        raise InvalidInput(f"mean in '{path}' must be on the scale 0..1, that is of x / 255, got {mean.tolist()}")
    return tuple(map(float, mean)), tuple(map(float, std))


def _read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Read those of the named arrays that a `.npz` file holds."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise InvalidInput(f"'{path}' is not an .npz file, as numpy.savez writes them; it must hold {NPZ_CONTENT}")
        # `is_zipfile` has read elsewhere in the file.
        file.seek(0)
        try:
            # Before numpy allocates anything: a file of kilobytes can claim to hold terabytes of zeros.
            _check_inflated(path, zipfile.ZipFile(file), names)
            file.seek(0)
            npz = np.load(file, allow_pickle=False)
            arrays = {name: npz[name] for name in names if name in npz.files}
        except InvalidInput:
            raise
        except Exception as error:  # numpy and zipfile raise whatever a broken file made them trip over
            raise InvalidInput(f"'{path}' cannot be read as an .npz file: {error}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands out the bytes of members that are no arrays
            raise InvalidInput(f"{name} in '{path}' is not a numpy array")
    return arrays


def _check_inflated(path: Path, archive: zipfile.ZipFile, names: Iterable[str]) -> None:
    """Raise InvalidInput for arrays compressed so far that they can only be meant to fill the memory."""
    members = {f"{name}.npy" for name in names}
    for entry in archive.infolist():
        inflated = entry.file_size
        # Small arrays may be as regular as they like, and larger ones up to a hundredfold.
        if entry.filename in members and inflated > max(MOST_INFLATED, FARTHEST_INFLATED * entry.compress_size):
            raise InvalidInput(
                f"{entry.filename.removesuffix('.npy')} in '{path}' has {entry.compress_size:,} bytes there and would "
                f"have {inflated:,} in memory: no data is that regular; store it with numpy.savez if it is yours"
            )


def _check_inputs(path: Path, x: np.ndarray) -> Tensor:
    # One axis alone would be samples without anything in them.
    if x.ndim < 2 or x.size == 0:
        raise InvalidInput(f"x in '{path}' has shape {x.shape}; '{path}' must hold {NPZ_CONTENT}")
    if x.dtype == np.uint8:
        return _move_channels_first(path, x)
    if x.dtype.kind != "f":
        raise InvalidInput(f"x in '{path}' is {x.dtype}; '{path}' must hold {NPZ_CONTENT}")
    with np.errstate(over="ignore"):  # becomes inf, which is refused next
        values = x.astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise InvalidInput(f"x in '{path}' has values that are not finite in float32")
    return torch.from_numpy(values)


def _move_channels_first(path: Path, x: np.ndarray) -> Tensor:
    """Return a view N×C×H×W of images."""
    if x.ndim not in (3, 4):
        raise InvalidInput(f"uint8 x in '{path}' must be images N×H×W or N×H×W×C, got shape {x.shape}")
    images = torch.from_numpy(x)
    if x.ndim == 3:
        return images.unsqueeze(1)
    # N×C×H×W is the order of most PyTorch code, and would be read as tiny images of many channels without a word.
    if x.shape[3] > MOST_CHANNELS:
        raise InvalidInput(
            f"x in '{path}' has shape {x.shape}, which would be images with {x.shape[3]} channels; "
            f"channels go last, 1 to {MOST_CHANNELS} of them: N×H×W×C"
        )
    return images.permute(0, 3, 1, 2)


def _check_labels(path: Path, y: np.ndarray) -> Tensor:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise InvalidInput(f"y in '{path}' must be N integer labels, got {y.dtype} of shape {y.shape}")
    # uint64 reaches further than torch's int64, and would wrap around.
    if y.size and (y.min() < 0 or y.max() > np.iinfo(np.int64).max):
        raise InvalidInput(f"labels in y of '{path}' must count from 0 on, got {y.min()} to {y.max()}")
    return torch.from_numpy(y.astype(np.int64))


# -- folders of images -------------------------------------------------------------------------------------------------


def list_class_names(folders: Iterable[Path]) -> list[str]:
    """List the sub-folders of all these folders by name, so that a class keeps its number where one folder lacks it."""
    return sorted(
        {
            entry.name
            for folder in folders
            for entry in folder.iterdir()
            if entry.is_dir() and not entry.name.startswith(".")
        }
    )


def read_images(folder: Path, classes: Sequence[str], resize: tuple[int, int] | None = None) -> RawData:
    """Read the images in `folder/CLASS/`, class by class and by file name within a class.

    They are grey (one channel) if all of them are, and RGB otherwise.

    Args:
        folder: where the sub-folders are.
        classes: the names of these, in the order of their numbers.
        resize: the height and the width to bring every image to, by Pillow's bilinear filter, as torchvision's
            transforms.Resize does; None: all of them have one size.

    Raises:
        InvalidInput: there is no image, one is broken or has another size, or Pillow is not installed.
    """
    pairs = [(file, label) for label, name in enumerate(classes) for file in _list_image_files(folder / name)]
    if not pairs:
        raise InvalidInput(
            f"'{folder}' has no images: they go into one sub-folder per class, as '{folder}/CLASS/1.png'"
        )
    files, labels = zip(*pairs, strict=True)
    # Two passes, the first over headers alone: the tensor is allocated once, in its final shape.
    mode, (width, height) = _find_common_format(files, resize)
    images = torch.empty(len(files), len(mode), height, width, dtype=torch.uint8)
    for row, file in enumerate(files):
        with _open_image(file) as image:
            picture = image.convert(mode)
            if resize is not None:
                picture = picture.resize((width, height), import_module("PIL.Image").Resampling.BILINEAR)
            # Pillow gives grey images without an axis for their channel.
            pixels = np.array(picture).reshape(height, width, len(mode))
        images[row] = torch.from_numpy(pixels).permute(2, 0, 1)
    return RawData(images, torch.tensor(labels), len(classes))


def _list_image_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    # Hidden files are no samples: macOS leaves ._1.png beside 1.png.
    visible = (file for file in folder.iterdir() if not file.name.startswith("."))
    # Sorted, because the order of a directory differs between file systems, and a sample must keep its place.
    return sorted(file for file in visible if file.suffix.lower() in IMAGE_SUFFIXES)


def _find_common_format(files: Sequence[Path], resize: tuple[int, int] | None) -> tuple[str, tuple[int, int]]:
    """Return Pillow's mode, "L" or "RGB" (a letter per channel), and the width and height that all images get."""
    sizes, grey = [], True
    for file in files:
        with _open_image(file) as image:  # reads the header alone
            mode, size = image.mode, image.size
        if mode.split(";")[0] in DEEP_MODES:
            raise InvalidInput(f"'{file}' has more than 8 bits per channel (Pillow's mode {mode}): convert it first")
        sizes.append(size)
        # One image in colour makes all of them RGB: a batch has one number of channels.
        grey = grey and mode in GREY_MODES
        if size != sizes[0] and resize is None:
            first, got = ("{}×{}".format(*size) for size in (sizes[0], size))
            raise InvalidInput(
                f"all images must have one size: '{files[0]}' is {first}, '{file}' is {got}; bring them to one with "
                "--resize 64 (in a spec @resize=64)"
            )
    return "L" if grey else "RGB", sizes[0] if resize is None else (resize[1], resize[0])


@contextmanager
def _open_image(file: Path) -> Iterator[Any]:
    try:
        pillow = import_module("PIL.Image")
    except ImportError as error:
        raise InvalidInput(f"reading '{file}' needs Pillow, which is not installed: pip install pillow") from error
    try:
        with pillow.open(file) as image:
            yield image
    except Exception as error:  # Pillow raises whatever a broken file made it trip over
        raise InvalidInput(f"'{file}' cannot be read as an image: {error}") from error
