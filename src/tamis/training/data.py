"""Datasets by name, by path or from Python, kept as they are stored and normalised batch by batch.

A dataset is named by a spec, SOURCE[:SPLIT][SLICE][@SETTING]...:

    cifar10   cifar10:test   cifar10:train[:5000]   digits:test[::-1]   ./mine.npz[100:200]   x.npy,y.npy
    ~/flowers:test@resize=64@mean=0.5,0.5,0.5@std=0.25,0.25,0.25   mydata:test_loader   digits:test@rest=0.5,0

- SOURCE is a name, a path, or MODULE:ATTRIBUTE. It is a path if it contains a separator, starts with . or ~, or ends in
  .npz or .npy; otherwise `digits`, which ships with the library, or a name in the data folder; otherwise a path if that
  exists. So a name means the same wherever one works, and ./NAME is the folder beside it.
- :SPLIT is :train or :test, for sources that have splits; train if left out.
- SLICE is [start:stop] or [start:stop:step], as Python's; several are applied one after the other.
- SETTING is mean=NUMBERS and std=NUMBERS, one per channel or one for all, in the place of those that are stored; and,
  for folders of images, resize=SIZE or resize=HEIGHTxWIDTH. Two more cut as slices do, in the order in which all of
  them are written: held_out=PART,SEED takes this part of the samples, drawn at random with that seed, and
  rest=PART,SEED all others. A budget searches on the one and certifies on the other.

Only these forms are split off the end; any other colon or bracket belongs to the path. A folder that itself is called
`runs:test` or `runs[1:2]` is written with a separator after it, `./runs[1:2]/`.

A name is looked up in the data folder, $TAMIS_DATA or else ~/.cache/tamis/data, as NAME_train.npz and NAME_test.npz.
A path leads to one of these:

- a .npz file: `x`, uint8 images N×H×W or N×H×W×C, or floats N×…; `y`, N integer labels from 0 on; and if you like
  `mean` and `std`, one number per channel, for images on the scale 0..1;
- a folder with train.npz or test.npz or both, where mean and std of train.npz hold for a test.npz without its own;
- a folder of images of one size, FOLDER/train/CLASS/*.png and FOLDER/test/CLASS/*.png, or FOLDER/CLASS/*.png without
  splits. Classes are numbered by name. Images come class by class, so of these [:100] is no sample, but [::100] is;
- a .npy file with what x is in an .npz file, and after a comma the .npy file with what y is.

MODULE:ATTRIBUTE is something in a Python module, which is imported, from the current folder if it is not installed: a
torch Dataset, a DataLoader, tensors, or a function without arguments that returns one of these, as `collect` takes it.
`train` and `test` alone are splits, so it is called otherwise, as test_loader.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tamis.errors import DataNotFound, InvalidInput
from tamis.graph import Array, sample_digests
from tamis.imports import attribute, import_named
from tamis.training.collection import collect
from tamis.training.data_files import (
    NPZ_CONTENT,
    Statistics,
    Stored,
    class_names,
    read_images,
    read_npy,
    read_npz,
    read_statistics,
)
from tamis.training.digits import digits

SPLITS = ("train", "test")
FOLDER_VARIABLE = "TAMIS_DATA"
DEFAULT_FOLDER = "~/.cache/tamis/data"
DIGESTED_AT_ONCE = 1024  # samples
LARGEST_SIDE = 2**15  # of an image that is resized
LARGEST_SEED = 2**63 - 1
INDEX_DTYPES = (torch.int32, torch.int64)  # torch takes uint8 for booleans, and no other
NORMALISATION: dict[str, Statistics] = {
    # ImageNet's, because the published CIFAR-10 ResNets were trained with them.
    "cifar10": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
}

_NUMBER = "-?[0-9]{1,18}"
_SLICE = rf"\[((?:{_NUMBER})?):((?:{_NUMBER})?)(?::((?:{_NUMBER})?))?\]"
_SETTINGS = "resize|mean|std|held_out|rest"
_SETTING = rf"@({_SETTINGS})=([-+.,0-9eEx]+)"
_ENDING = re.compile(rf"{_SLICE}|{_SETTING}")
_SPEC = re.compile(
    rf"(?P<source>[^:\[].*?)(?::(?P<split>{'|'.join(SPLITS)}))?(?P<ending>(?:{_SLICE}|{_SETTING})*)", re.DOTALL
)
_IN_MODULE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


@dataclass(frozen=True)
class Share:
    """A part of the samples that is drawn at random: what is `held_out`, or the `rest`."""

    name: str
    part: float
    seed: int


@dataclass(frozen=True)
class Spec:
    """What names a dataset, taken apart; `resize` is a height and a width, `cuts` are made one after the other."""

    text: str
    source: str
    split: str | None = None
    cuts: tuple[slice | Share, ...] = ()
    resize: tuple[int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def in_module(self) -> bool:
        """Whether it names something in a Python module, whose code runs when the data is read."""
        name = self.source.partition(":")[0]
        found = _IN_MODULE.fullmatch(self.source) is not None and self.split is None
        return found and name != "digits" and not _is_path(self.source) and name not in _names_in(data_folder())

    def splits(self) -> dict[str, str]:
        """The specs of both splits, if this names neither, nor a part of the data, nor what has no splits."""
        whole = not (self.split or self.cuts or self.source.endswith((".npz", ".npy")) or self.in_module)
        if not whole:
            return {"train": self.text}
        ending = self.text.removeprefix(self.source)
        return {split: f"{self.source}:{split}{ending}" for split in SPLITS}


def parse_spec(text: str) -> Spec:
    """A spec taken apart; how specs are written stands at the top of this file.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a dataset must be a name or a path, as text, got {text!r:.80}")
    parts = _SPEC.fullmatch(text)
    if parts is None:
        raise InvalidInput(f"a dataset must be a name or a path, got '{text}'")
    cuts: list[slice | Share] = []
    settings: dict[str, Any] = {}
    for start, stop, step, name, value in _ENDING.findall(parts["ending"]):
        if not name:
            cuts.append(_slice(text, start, stop, step))
        elif name in ("held_out", "rest"):
            cuts.append(_share(name, value, text))
        else:
            settings[name] = _sizes(value, text) if name == "resize" else _per_channel(name, value, text)
    if ("mean" in settings) != ("std" in settings):
        raise InvalidInput(f"mean and std go together, got '{text}'")
    return Spec(text, parts["source"], parts["split"], tuple(cuts), **settings)


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Inputs with labels, as stored; `batch` gives them as a network takes them.

    Args:
        inputs: uint8 images N×C×H×W, floats N×…, or int64 numbers N×… of words, which are used as they are.
        labels: int64 (N,).
        name: the spec that gives it.
        mean, std: per channel, for images on the scale 0..1. If empty, floats are used as they are, and images on the
            scale 0..1.
        classes: how many there are; 0 counts up to the largest label.
        has_labels: whether the labels mean anything; where they are not known, they are 0.
    """

    inputs: Tensor
    labels: Tensor
    name: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    classes: int = 0
    has_labels: bool = True

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

    def set_aside(self, part: float, seed: int) -> tuple[Data, Data]:
        """Some samples, drawn at random, and all others, both in the order of the data; equal ones go the same way.

        Their names are the specs of them.

        Args:
            part: how many are drawn, as a fraction.
            seed: of the draw.

        Raises:
            InvalidInput: nothing would be drawn, or nothing left.

        Example:
            >>> searched, certified = load_data("digits:test").set_aside(0.5, seed=0)
            >>> certified.name
            'digits:test@rest=0.5,0'
        """
        drawn = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[: round(part * len(self))]
        chosen = torch.from_numpy(np.isin(self.sample_digests, self.sample_digests[drawn.numpy()]))
        if not chosen.any() or chosen.all():
            distinct = len(np.unique(self.sample_digests))
            said = f" ({distinct:,} distinct ones)" if distinct < len(self) else ""
            raise InvalidInput(f"'{self.name}' has {len(self):,} samples{said}, of which {part:g} cannot be held out")
        written = f"{float(part)!r},{seed}"  # repr, which reads back as the same number
        held_out = replace(self[chosen], name=f"{self.name}@held_out={written}")
        return held_out, replace(self[~chosen], name=f"{self.name}@rest={written}")

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

    @cached_property
    def sample_digests(self) -> Array:
        """A number for each sample, by which equal ones are found; see `tamis.graph.seen_samples`."""
        here = self.to("cpu")  # a GPU may round x/255 otherwise, and one sample would have two digests
        some = (here._normalise(inputs) for inputs in here.inputs.split(DIGESTED_AT_ONCE))
        return np.concatenate([sample_digests((inputs,), (inputs.dtype,)) for inputs in some])

    def normalised(self) -> Tensor:
        """All inputs, as `batch` gives them; a new tensor."""
        return self._normalise(self.inputs)

    def _normalise(self, inputs: Tensor) -> Tensor:
        if inputs.dtype is torch.int64:
            return inputs.clone()
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
    named = parse_spec(spec)
    stored, statistics = _find(named, labelled)
    if labelled and not stored.has_labels:
        raise InvalidInput(f"'{spec}' has no labels, which are needed here")
    data = _as_data(stored, spec, _chosen_statistics(named, stored, statistics))
    if not named.cuts:
        return replace(data, inputs=data.inputs.contiguous())
    places = range(len(data))
    for cut in named.cuts:
        if isinstance(cut, slice):
            places = places[cut]
        else:
            data = _shared_out(data._at(places, spec), cut)
            places = range(len(data))
    return data._at(places, spec)


def as_data(source: Any, called: str) -> Data:
    """A dataset from its name, or from what a user has in Python, as `collect` takes it.

    Args:
        source: a spec, a `Data`, or tensors, a torch Dataset or a loader.
        called: what to call it, where it has no name.

    Example:
        >>> as_data((inputs, labels), "mine").has_labels
        True
    """
    if isinstance(source, Data):
        return source
    if isinstance(source, (str, Path)):
        return load_data(str(source), labelled=False)
    return _as_data(collect(source, called), called, ((), ()))


def _as_data(stored: Stored, name: str, statistics: Statistics) -> Data:
    return Data(stored.inputs, stored.labels, name, *statistics, stored.classes, stored.has_labels)


# -- specs -------------------------------------------------------------------------------------------------------------


def _slice(spec: str, start: str, stop: str, step: str) -> slice:
    numbers = [int(text) if text else None for text in (start, stop, step)]
    if numbers[2] == 0:
        raise InvalidInput(f"the step of a slice cannot be 0, got '{spec}'")
    return slice(*numbers)


def _share(name: str, text: str, spec: str) -> Share:
    part, _, seed = text.partition(",")
    try:
        share = Share(name, float(part), int(seed))
    except ValueError:
        share = Share(name, math.nan, 0)
    if not (0 < share.part < 1 and 0 <= share.seed <= LARGEST_SEED):
        wanted = "a part of the samples, above 0 and below 1, a comma and a seed from 0 on, as 0.5,0"
        raise InvalidInput(f"{name} must be {wanted}; got '{text}' in '{spec}'")
    return share


def _shared_out(data: Data, share: Share) -> Data:
    held_out, rest = data.set_aside(share.part, share.seed)
    return rest if share.name == "rest" else held_out


def _sizes(text: str, spec: str) -> tuple[int, int]:
    sizes = text.split("x")
    if len(sizes) > 2 or not all(size.isdecimal() and 0 < int(size) <= LARGEST_SIDE for size in sizes):
        wanted = f"a size or HEIGHTxWIDTH in pixels, as 64 or 48x64, at most {LARGEST_SIDE:,}"
        raise InvalidInput(f"resize must be {wanted}; got '{text}' in '{spec}'")
    return int(sizes[0]), int(sizes[-1])


def _per_channel(name: str, text: str, spec: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(math.isfinite(number) and (name == "mean" or number > 0) for number in numbers):
        wanted = "numbers" if name == "mean" else "positive numbers"
        raise InvalidInput(f"{name} must be {wanted} with commas between, one per channel; got '{text}' in '{spec}'")
    return numbers


def _chosen_statistics(spec: Spec, stored: Stored, otherwise: Statistics) -> Statistics:
    """Mean and std as a spec says, one for all channels if it gives one, or else as they are known."""
    if not spec.mean:
        return otherwise
    channels = stored.inputs.shape[1]
    if stored.inputs.dtype is torch.uint8 and not all(0 <= mean <= 1 for mean in spec.mean):
        raise InvalidInput(f"mean must be on the scale 0..1, that is of pixels / 255; got '{spec.text}'")
    mean, std = (each * channels if len(each) == 1 else each for each in (spec.mean, spec.std))
    return mean, std


def _written(chosen: slice) -> str:
    parts = (chosen.start, chosen.stop) if chosen.step is None else (chosen.start, chosen.stop, chosen.step)
    return "[" + ":".join("" if part is None else str(int(part)) for part in parts) + "]"


def _find(spec: Spec, labelled: bool) -> tuple[Stored, Statistics]:
    source, path = spec.source, Path(os.path.expanduser(spec.source))
    if source == "digits":
        _refuse_resizing(spec)
        inputs, labels = digits("test" if spec.split == "test" else "train")
        return Stored(inputs, labels, classes=10), ((), ())
    if not _is_path(source) and (source in _names_in(data_folder()) or not os.path.exists(path)):
        _refuse_resizing(spec)
        if spec.in_module:
            return _in_module(spec), ((), ())
        _refuse_malformed(spec.text, source)
        return _named(source, spec.split or "train")
    stored = _at_path(spec, path, labelled)
    return stored, _statistics_or_scale(stored)


def _refuse_resizing(spec: Spec) -> None:
    if spec.resize is not None:
        raise InvalidInput(f"'{spec.text}': only folders of images are resized, and '{spec.source}' is none")


def _is_path(source: str) -> bool:
    return source.startswith((".", "~")) or source.endswith((".npz", ".npy")) or "/" in source or os.sep in source


def _refuse_malformed(spec: str, name: str) -> None:
    """What is left of a spec once its split and slices are off has no colon or bracket, if it is no path."""
    if setting := re.search(f"@({_SETTINGS})=", name):
        example = "@resize=64@mean=0.5@std=0.25@rest=0.5,0"
        raise InvalidInput(f"{setting[1]} takes numbers, as {example} at the end; got '{spec}'")
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
    if os.path.exists(f"{name}.py"):
        parts.append(f"for what is in {name}.py, take another name than {split}, as {name}:{split}_loader")
    return "; ".join(parts)


# -- paths -------------------------------------------------------------------------------------------------------------


def _at_path(spec: Spec, path: Path, labelled: bool) -> Stored:
    if path.is_dir():
        return _in_folder(spec, path)
    _refuse_resizing(spec)
    first, comma, second = spec.source.rpartition(",")
    if comma and first.endswith(".npy") and second.endswith(".npy"):
        inputs, labels = (Path(os.path.expanduser(each)) for each in (first, second))
        return _in_file(spec, inputs, labelled, labels)
    if os.path.exists(path):
        return _in_file(spec, path, labelled)
    without_split_and_slice = re.split(r"[:\[@]", path.name)[0]
    if without_split_and_slice and os.path.exists(path.parent / without_split_and_slice):
        _refuse_malformed(spec.text, path.name)
    raise DataNotFound(
        f"there is no '{path.absolute()}': it must be an .npz file with {NPZ_CONTENT}, "
        "or a folder with train.npz or test.npz, or with one sub-folder of images per class"
    )


def _in_file(spec: Spec, path: Path, labelled: bool, labels: Path | None = None) -> Stored:
    if spec.split is not None:
        raise InvalidInput(f"'{spec.text}': '{path}' is one file and has no splits; leave out :{spec.split}")
    for each in (path, labels):
        if each is not None and not each.exists():
            raise DataNotFound(f"'{spec.text}' needs '{each.absolute()}', which is not there")
    return read_npy(path, labels, labelled) if path.suffix == ".npy" else read_npz(path, labelled)


def _in_folder(spec: Spec, folder: Path) -> Stored:
    if any((folder / f"{each}.npz").is_file() for each in SPLITS):
        _refuse_resizing(spec)
        wanted = folder / f"{spec.split or 'train'}.npz"
        if not wanted.is_file():
            raise DataNotFound(f"'{spec.text}' needs '{wanted}', which is not there; it must hold {NPZ_CONTENT}")
        return _read_split(folder, "", spec.split or "train")
    parts = [folder / each for each in SPLITS if (folder / each).is_dir()]
    if not parts:
        if spec.split is not None:
            problem = f"'{folder}' has neither train nor test in it; leave out :{spec.split}"
            raise InvalidInput(f"'{spec.text}': {problem}")
        return read_images(folder, class_names([folder]), spec.resize)
    wanted = folder / (spec.split or "train")
    if wanted not in parts:
        raise DataNotFound(f"'{spec.text}' needs the folder '{wanted}', which is not there; '{parts[0]}' is")
    return read_images(wanted, class_names(parts), spec.resize)


# -- Python ------------------------------------------------------------------------------------------------------------


def _in_module(spec: Spec) -> Stored:
    """What a Python module has under a name, or what the function there returns."""
    module, _, path = spec.source.partition(":")
    try:
        found = attribute(import_named(module), path)
    except InvalidInput as error:
        raise InvalidInput(
            f"there is no dataset '{module}' with a split '{path}', and nothing of that name in Python: {error}"
        ) from error
    if callable(found) and not isinstance(found, (Dataset, DataLoader, Data)):
        try:
            found = found()
        except Exception as error:
            raise InvalidInput(f"{spec.source}() failed: {type(error).__name__}: {error}") from error
    if isinstance(found, Data):
        return Stored(found.normalised(), found.labels, found.classes, has_labels=found.has_labels)
    return collect(found, f"'{spec.source}'")
