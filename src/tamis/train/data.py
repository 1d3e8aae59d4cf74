"""Datasets by name or by path, kept as they are stored and normalised batch by batch.

A dataset is named by a spec, SOURCE[:SPLIT][SLICE]...:

    cifar10   cifar10:test   cifar10:train[:5000]   digits:test[::-1]   ./mine.npz[100:200]   ~/flowers:test

- SOURCE is a name or a path. It is a path if it contains a separator, starts with . or ~, or ends in .npz; otherwise
  `digits`, which ships with the library, or a name in the data folder; otherwise a path if that exists. So a name means
  the same wherever one works, and ./NAME is the folder beside it.
- :SPLIT is :train or :test, for sources that have splits; train if left out.
- SLICE is [start:stop] or [start:stop:step], as Python's; several are applied one after the other.

Only these forms are split off the end; any other colon or bracket belongs to the path. A folder that itself is called
`runs:test` or `runs[1:2]` is written with a separator after it, `./runs[1:2]/`.

A name is looked up in the data folder, $TAMIS_DATA or else ~/.cache/tamis/data, as NAME_train.npz and NAME_test.npz.
A path leads to one of these:

- a .npz file: `x`, uint8 images N×H×W or N×H×W×C, or floats N×…; `y`, N integer labels from 0 on; and if you like
  `mean` and `std`, one number per channel, for images on the scale 0..1;
- a folder with train.npz or test.npz or both, where mean and std of train.npz hold for a test.npz without its own;
- a folder of images of one size, FOLDER/train/CLASS/*.png and FOLDER/test/CLASS/*.png, or FOLDER/CLASS/*.png without
  splits. Classes are numbered by name. Images come class by class, so of these [:100] is no sample, but [::100] is.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from tamis.errors import DataNotFound, InvalidInput
from tamis.train.digits import digits
from tamis.train.stored import NPZ_CONTENT, Statistics, Stored, class_names, read_images, read_npz, read_statistics

SPLITS = ("train", "test")
FOLDER_VARIABLE = "TAMIS_DATA"
DEFAULT_FOLDER = "~/.cache/tamis/data"
INDEX_DTYPES = (torch.int32, torch.int64)  # torch takes uint8 for booleans, and no other
NORMALISATION: dict[str, Statistics] = {
    # ImageNet's, because the published CIFAR-10 ResNets were trained with them.
    "cifar10": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
}

_NUMBER = "-?[0-9]{1,18}"
_SLICE = rf"\[((?:{_NUMBER})?):((?:{_NUMBER})?)(?::((?:{_NUMBER})?))?\]"
_SPEC = re.compile(rf"(?P<source>[^:\[].*?)(?::(?P<split>{'|'.join(SPLITS)}))?(?P<slices>(?:{_SLICE})*)", re.DOTALL)


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Inputs with labels, as stored; `batch` gives them as a network takes them.

    Args:
        inputs: uint8 images N×C×H×W, or floats N×….
        labels: int64 (N,).
        name: the spec that gives it.
        mean, std: per channel, for images on the scale 0..1. If empty, floats are used as they are, and images on the
            scale 0..1.
        classes: how many there are; 0 counts up to the largest label.
    """

    inputs: Tensor
    labels: Tensor
    name: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    classes: int = 0

    def __post_init__(self) -> None:
        if self.labels.dtype is not torch.int64 or self.labels.shape != self.inputs.shape[:1]:
            got = f"{self.labels.dtype} {tuple(self.labels.shape)} for inputs {tuple(self.inputs.shape)}"
            raise InvalidInput(f"'{self.name}' needs an int64 label for each input, got labels {got}")
        if not len(self):
            raise InvalidInput(f"'{self.name}' is empty")
        if len(self.mean) != len(self.std) or (self.mean and self.inputs.shape[1:2] != (len(self.mean),)):
            got = f"mean {self.mean} and std {self.std} for inputs {tuple(self.inputs.shape)}"
            raise InvalidInput(f"'{self.name}' needs a mean and a std for each channel, or none, got {got}")
        if not self.classes:
            object.__setattr__(self, "classes", int(self.labels.max()) + 1)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.inputs.shape))
        return f"Data('{self.name}', {shape} {str(self.inputs.dtype).removeprefix('torch.')}, {self.classes} classes)"

    def __getitem__(self, chosen: slice | Tensor) -> Data:
        """Some of the samples: a slice, whose name is the spec of it, or a tensor of indices (or of booleans).

        What is chosen is copied, so that the rest can be freed.
        """
        if isinstance(chosen, slice):
            return self._at(self._places(chosen), self.name + _written(chosen))
        if not isinstance(chosen, Tensor) or chosen.dim() != 1:
            raise InvalidInput(
                f"'{self.name}' can be indexed by a slice or by a tensor with one axis, got {chosen!r:.80}"
            )
        self._check_index(chosen)
        inputs, labels = (values[chosen.to(values.device)] for values in (self.inputs, self.labels))
        return replace(self, inputs=inputs, labels=labels, name=f"{self.name}[{len(labels)} chosen]")

    def _places(self, chosen: slice) -> range:
        try:
            return range(len(self))[chosen]
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"'{self.name}' cannot be cut by {chosen}: {error}") from error

    def _check_index(self, chosen: Tensor) -> None:
        if chosen.dtype is torch.bool:
            if len(chosen) != len(self):
                raise InvalidInput(
                    f"'{self.name}' has {len(self):,} samples and needs a boolean for each, got {len(chosen):,}"
                )
        elif chosen.dtype not in INDEX_DTYPES:
            raise InvalidInput(f"'{self.name}' can be indexed by booleans, int32 or int64, got {chosen.dtype}")
        elif len(chosen):
            least, most = (int(place) for place in chosen.aminmax())
            if least < -len(self) or most >= len(self):
                wrong = most if most >= len(self) else least
                raise InvalidInput(f"'{self.name}' has the samples 0 to {len(self) - 1}, got the index {wrong}")

    def _at(self, places: range, name: str) -> Data:
        if not places:
            raise InvalidInput(f"'{name}' is empty: it is cut from {len(self):,} samples")
        index = torch.arange(places.start, places.stop, places.step, device=self.inputs.device)
        inputs, labels = (values.index_select(0, index) for values in (self.inputs, self.labels))
        return replace(self, inputs=inputs, labels=labels, name=name)

    def to(self, device: str | torch.device) -> Data:
        """The same on another device, images still as uint8."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs as float32, normalised, and labels, of the samples at these indices.

        Images x become (x/255 − mean)/std, channel by channel, and floats (x − mean)/std.
        """
        indices = indices.to(self.inputs.device)
        return self._normalise(self.inputs[indices]), self.labels[indices]

    @property
    def example(self) -> Tensor:
        """The first input as `batch` gives it, in a batch of one."""
        return self._normalise(self.inputs[:1])

    def digest(self) -> str:
        """The sha256 of inputs and labels as stored, and of mean and std: what the name alone does not say."""
        digest = hashlib.sha256(f"{self.inputs.dtype} {tuple(self.inputs.shape)} {self.mean} {self.std}\n".encode())
        for values in (self.inputs, self.labels):
            digest.update(values.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def normalised(self) -> Tensor:
        """All inputs, as `batch` gives them; a new tensor."""
        return self._normalise(self.inputs)

    def _normalise(self, inputs: Tensor) -> Tensor:
        values = inputs.to(torch.float32, copy=True)
        if inputs.dtype is torch.uint8:
            values.div_(255)
        if self.mean:
            mean, std = self._statistics
            values.sub_(mean).div_(std)
        return values

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and std in the shape of one sample; kept, because a copy to a GPU for each batch would slow it down."""
        shape = (-1, *[1] * (self.inputs.dim() - 2))
        both = torch.tensor((self.mean, self.std), dtype=torch.float32, device=self.inputs.device)
        return both[0].view(shape), both[1].view(shape)


def load_data(spec: str, labelled: bool = True) -> Data:
    """The dataset that a spec names; how specs are written stands at the top of this file.

    Args:
        spec: the name or path, with a split and slices if wanted.
        labelled: whether labels are needed; if not, an .npz file may hold x alone, and labels are 0.

    CIFAR-10, MNIST and Fashion-MNIST, by name, are normalised by their usual mean and std per channel; digits are on
    the scale 0..1, and so are images for which no mean and std is stored.

    Raises:
        DataNotFound: it is not there; the message says where it should be.
        InvalidInput: the spec or the file is malformed.

    Example:
        >>> data = load_data("cifar10:test[:1000]")
        >>> inputs, labels = data.batch(torch.arange(128))
    """
    if not isinstance(spec, str):
        raise InvalidInput(f"a dataset must be a name or a path, as text, got {spec!r:.80}")
    parts = _SPEC.fullmatch(spec)
    if parts is None:
        raise InvalidInput(f"a dataset must be a name or a path, got '{spec}'")
    slices = [_slice(spec, *numbers) for numbers in re.findall(_SLICE, parts["slices"])]
    stored, (mean, std) = _find(spec, parts["source"], parts["split"], labelled)
    data = Data(stored.inputs, stored.labels, spec, mean, std, stored.classes)
    if not slices:
        return replace(data, inputs=data.inputs.contiguous())
    places = range(len(data))
    for chosen in slices:
        places = places[chosen]
    return data._at(places, spec)


# -- specs -------------------------------------------------------------------------------------------------------------


def _slice(spec: str, start: str, stop: str, step: str) -> slice:
    numbers = [int(text) if text else None for text in (start, stop, step)]
    if numbers[2] == 0:
        raise InvalidInput(f"the step of a slice cannot be 0, got '{spec}'")
    return slice(*numbers)


def _written(chosen: slice) -> str:
    parts = (chosen.start, chosen.stop) if chosen.step is None else (chosen.start, chosen.stop, chosen.step)
    return "[" + ":".join("" if part is None else str(int(part)) for part in parts) + "]"


def _find(spec: str, source: str, split: str | None, labelled: bool) -> tuple[Stored, Statistics]:
    if source == "digits":
        inputs, labels = digits("test" if split == "test" else "train")
        return Stored(inputs, labels, classes=10), ((), ())
    path = Path(os.path.expanduser(source))
    if not _is_path(source) and (source in _names_in(data_folder()) or not os.path.exists(path)):
        _refuse_malformed(spec, source)
        return _named(source, split or "train")
    stored = _at_path(spec, path, split, labelled)
    return stored, _statistics_or_scale(stored)


def _is_path(source: str) -> bool:
    return source.startswith((".", "~")) or source.endswith(".npz") or "/" in source or os.sep in source


def _refuse_malformed(spec: str, name: str) -> None:
    """What is left of a spec once its split and slices are off has no colon or bracket, if it is no path."""
    if "[" in name or "]" in name:
        raise InvalidInput(f"a slice is [start:stop] or [start:stop:step] at the end, after the split, got '{spec}'")
    name, colon, split = name.partition(":")
    if colon:
        raise InvalidInput(f"'{spec}': there is no split '{split}'; write {name}:train or {name}:test")


def _statistics_or_scale(stored: Stored, known: Statistics = ((), ())) -> Statistics:
    """What is stored with the data; else, for images, what is known of them, or what keeps the scale 0..1."""
    if any(stored.statistics) or stored.inputs.dtype is not torch.uint8:
        return stored.statistics
    channels = stored.inputs.shape[1]
    return known if any(known) else ((0.0,) * channels, (1.0,) * channels)


# -- names -------------------------------------------------------------------------------------------------------------


def data_folder() -> Path:
    """Where datasets are looked up by name: $TAMIS_DATA, or else ~/.cache/tamis/data."""
    return Path(os.path.expanduser(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER))


def _named(name: str, split: str) -> tuple[Stored, Statistics]:
    folder = data_folder()
    if not (folder / f"{name}_{split}.npz").is_file():
        raise DataNotFound(_where_it_should_be(name, split, folder))
    stored = _read_split(folder, f"{name}_", split)
    return stored, _statistics_or_scale(stored, NORMALISATION.get(name, ((), ())))


def _read_split(folder: Path, prefix: str, split: str) -> Stored:
    stored = read_npz(folder / f"{prefix}{split}.npz")
    train = folder / f"{prefix}train.npz"
    if split == "test" and not any(stored.statistics) and train.is_file():
        return stored._replace(statistics=read_statistics(train, stored.inputs))
    return stored


def _names_in(folder: Path) -> list[str]:
    files = (file.name for split in SPLITS for file in folder.glob(f"*_{split}.npz"))
    return sorted({name.rpartition("_")[0] for name in files})


def _where_it_should_be(name: str, split: str, folder: Path) -> str:
    named = bool(os.environ.get(FOLDER_VARIABLE))
    origin = f"which ${FOLDER_VARIABLE} names" if named else f"the default; ${FOLDER_VARIABLE} can name another"
    names = _names_in(folder)
    parts = [
        f"there is no dataset '{name}:{split}': no file {name}_{split}.npz in '{folder}' ({origin})",
        f"it must hold {NPZ_CONTENT}",
        f"datasets there: {', '.join(names) or 'none'}; digits ships with tamis",
    ]
    if name not in names and (similar := get_close_matches(name.lower(), [*names, "digits"])):
        parts.append(f"did you mean {' or '.join(similar)}?")
    return "; ".join(parts)


# -- paths -------------------------------------------------------------------------------------------------------------


def _at_path(spec: str, path: Path, split: str | None, labelled: bool) -> Stored:
    if path.is_dir():
        return _in_folder(spec, path, split)
    if os.path.exists(path):
        return _in_file(spec, path, split, labelled)
    without_split_and_slice = re.split(r"[:\[]", path.name)[0]
    if without_split_and_slice and os.path.exists(path.parent / without_split_and_slice):
        _refuse_malformed(spec, path.name)
    raise DataNotFound(
        f"there is no '{path.absolute()}': it must be an .npz file with {NPZ_CONTENT}, "
        "or a folder with train.npz or test.npz, or with one sub-folder of images per class"
    )


def _in_file(spec: str, path: Path, split: str | None, labelled: bool) -> Stored:
    if split is not None:
        raise InvalidInput(f"'{spec}': '{path}' is one file and has no splits; leave out :{split}")
    return read_npz(path, labelled)


def _in_folder(spec: str, folder: Path, split: str | None) -> Stored:
    if any((folder / f"{each}.npz").is_file() for each in SPLITS):
        wanted = folder / f"{split or 'train'}.npz"
        if not wanted.is_file():
            raise DataNotFound(f"'{spec}' needs '{wanted}', which is not there; it must hold {NPZ_CONTENT}")
        return _read_split(folder, "", split or "train")
    parts = [folder / each for each in SPLITS if (folder / each).is_dir()]
    if not parts:
        if split is not None:
            raise InvalidInput(f"'{spec}': '{folder}' has neither train nor test in it; leave out :{split}")
        return read_images(folder, class_names([folder]))
    wanted = folder / (split or "train")
    if wanted not in parts:
        raise DataNotFound(f"'{spec}' needs the folder '{wanted}', which is not there; '{parts[0]}' is")
    return read_images(wanted, class_names(parts))
