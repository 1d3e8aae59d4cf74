"""Datasets are read into a `Data` by name, by path or from Python."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from tamis.errors import DataNotFound, InvalidInput
from tamis.imports import attribute, import_named
from tamis.training.collection import collect
from tamis.training.data import Data
from tamis.training.data_files import (
    NPZ_CONTENT,
    RawData,
    Statistics,
    list_class_names,
    read_images,
    read_npy,
    read_npz,
    read_statistics,
)
from tamis.training.data_spec import (
    FOLDER_VARIABLE,
    SPLITS,
    Share,
    Spec,
    data_folder,
    is_path,
    list_datasets,
    parse_spec,
    refuse_malformed,
)
from tamis.training.digits import digits

NORMALISATION: dict[str, Statistics] = {
    # ImageNet's, because the published CIFAR-10 ResNets were trained with them.
    "cifar10": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
}


def load_data(spec: str, labelled: bool = True) -> Data:
    """Load the dataset that a spec names; `tamis.training.data_spec` says how specs are written.

    Args:
        spec: the name or path, with a split and slices if wanted.
        labelled: whether labels are needed; if not, an .npz file may hold x alone, and labels are 0.

    CIFAR-10, MNIST and Fashion-MNIST, by name, are normalised by their usual mean and std per channel; digits are on
    the scale 0..1, and so are images for which no mean and std is stored.

    Raises:
        DataNotFound: it is not there; the message says where it should be.
        InvalidInput: the spec or the file is malformed.

    Example:
        >>> data = load_data("digits:test[:100]")  # or "cifar10:test", "images.npz", a folder
        >>> inputs, labels = data.batch(torch.arange(32))
        >>> tuple(inputs.shape), tuple(labels.shape)
        ((32, 1, 8, 8), (32,))
    """
    parsed = parse_spec(spec)
    raw, statistics = _read_source(parsed, labelled)
    if labelled and not raw.has_labels:
        raise InvalidInput(f"'{spec}' has no labels, which are needed here")
    data = _to_data(raw, spec, _choose_statistics(parsed, raw, statistics))
    # Images are read as a view of another layout, and every batch would pay for gathering its pixels.
    if not parsed.cuts:
        return replace(data, inputs=data.inputs.contiguous())
    # Slices are composed as ranges, and inputs are copied once, at the end; a random share has to see the samples.
    places = range(len(data))
    for cut in parsed.cuts:
        if isinstance(cut, slice):
            places = places[cut]
        else:
            data = _take_share(data._select(places, spec), cut)
            places = range(len(data))
    # The name stays the whole spec, which loads these samples again.
    return data._select(places, spec)


def as_data(source: Any, called: str) -> Data:
    """Return a dataset from its name, or from what a user has in Python, as `collect` takes it.

    Args:
        source: a spec, a `Data`, or tensors, a torch Dataset or a loader.
        called: what to call it, where it has no name.

    Example:
        >>> as_data((torch.rand(5, 3), torch.arange(5)), "mine").has_labels
        True
    """
    if isinstance(source, Data):
        return source
    if isinstance(source, (str, Path)):
        # Whether labels are needed is for the caller to say, who can ask `has_labels`.
        return load_data(str(source), labelled=False)
    return _to_data(collect(source, called), called, ((), ()))


def _to_data(raw: RawData, name: str, statistics: Statistics) -> Data:
    return Data(raw.inputs, raw.labels, name, *statistics, raw.classes, raw.has_labels)


def _take_share(data: Data, share: Share) -> Data:
    held_out, rest = data.set_aside(share.part, share.seed)
    return rest if share.name == "rest" else held_out


def _choose_statistics(spec: Spec, raw: RawData, otherwise: Statistics) -> Statistics:
    """Return the mean and std of a spec, one for all channels if it gives one, or else the known ones."""
    if not spec.mean:
        return otherwise
    channels = raw.inputs.shape[1]
    if raw.inputs.dtype is torch.uint8 and not all(0 <= mean <= 1 for mean in spec.mean):
        raise InvalidInput(f"mean must be on the scale 0..1, that is of pixels / 255; got '{spec.text}'")
    mean, std = (each * channels if len(each) == 1 else each for each in (spec.mean, spec.std))
    return mean, std


def _read_source(spec: Spec, labelled: bool) -> tuple[RawData, Statistics]:
    source, path = spec.source, Path(os.path.expanduser(spec.source))
    if source == "digits":
        _refuse_resizing(spec)
        inputs, labels = digits("test" if spec.split == "test" else "train")
        return RawData(inputs, labels, classes=10), ((), ())
    # A dataset goes before a file of the same name, which ./NAME still reaches.
    if not is_path(source) and (source in list_datasets(data_folder()) or not os.path.exists(path)):
        _refuse_resizing(spec)
        if spec.in_module:
            return _read_from_module(spec), ((), ())
        refuse_malformed(spec.text, source)
        return _read_named(source, spec.split or "train")
    raw = _read_path(spec, path, labelled)
    return raw, _choose_default_statistics(raw)


def _refuse_resizing(spec: Spec) -> None:
    if spec.resize is not None:
        raise InvalidInput(f"'{spec.text}': only folders of images are resized, and '{spec.source}' is none")


def _choose_default_statistics(raw: RawData, known: Statistics = ((), ())) -> Statistics:
    """Return the stored mean and std, or else, for images, the known ones, or those that keep the scale 0..1."""
    # Those in the file go first: whoever stored them knows the data.
    if any(raw.statistics) or raw.inputs.dtype is not torch.uint8:
        return raw.statistics
    channels = raw.inputs.shape[1]
    return known if any(known) else ((0.0,) * channels, (1.0,) * channels)


# -- names -------------------------------------------------------------------------------------------------------------


def _read_named(name: str, split: str) -> tuple[RawData, Statistics]:
    folder = data_folder()
    if not (folder / f"{name}_{split}.npz").is_file():
        raise DataNotFound(_explain_missing(name, split, folder))
    raw = _read_split(folder, f"{name}_", split)
    return raw, _choose_default_statistics(raw, NORMALISATION.get(name, ((), ())))


def _read_split(folder: Path, prefix: str, split: str) -> RawData:
    raw = read_npz(folder / f"{prefix}{split}.npz")
    train = folder / f"{prefix}train.npz"
    # Test data is normalised as the network was trained: by the statistics of the training data.
    if split == "test" and not any(raw.statistics) and train.is_file():
        return raw._replace(statistics=read_statistics(train, raw.inputs))
    return raw


def _explain_missing(name: str, split: str, folder: Path) -> str:
    has_variable = bool(os.environ.get(FOLDER_VARIABLE))
    origin = f"which ${FOLDER_VARIABLE} names" if has_variable else f"the default; ${FOLDER_VARIABLE} can name another"
    names = list_datasets(folder)
    parts = [
        f"there is no dataset '{name}:{split}': no file {name}_{split}.npz in '{folder}' ({origin})",
        f"it must hold {NPZ_CONTENT}",
        f"datasets there: {', '.join(names) or 'none'}; digits ships with tamis",
    ]
    # A slip of the pen is likelier than a missing file, and the name that was meant is a better answer.
    if name not in names and (similar := get_close_matches(name.lower(), [*names, "digits"])):
        parts.append(f"did you mean {' or '.join(similar)}?")
    if os.path.exists(f"{name}.py"):
        parts.append(f"for what is in {name}.py, take another name than {split}, as {name}:{split}_loader")
    return "; ".join(parts)


# -- paths -------------------------------------------------------------------------------------------------------------


def _read_path(spec: Spec, path: Path, labelled: bool) -> RawData:
    if path.is_dir():
        return _read_folder(spec, path)
    _refuse_resizing(spec)
    # From the right, because folders may have commas in their names.
    first, comma, second = spec.source.rpartition(",")
    if comma and first.endswith(".npy") and second.endswith(".npy"):
        inputs, labels = (Path(os.path.expanduser(each)) for each in (first, second))
        return _read_file(spec, inputs, labelled, labels)
    if os.path.exists(path):
        return _read_file(spec, path, labelled)
    # Where less of the name leads to something that exists, the ending is what is wrong, and the message says so.
    without_split_and_slice = re.split(r"[:\[@]", path.name)[0]
    if without_split_and_slice and os.path.exists(path.parent / without_split_and_slice):
        refuse_malformed(spec.text, path.name)
    raise DataNotFound(
        f"there is no '{path.absolute()}': it must be an .npz file with {NPZ_CONTENT}, "
        "or a folder with train.npz or test.npz, or with one sub-folder of images per class"
    )


def _read_file(spec: Spec, path: Path, labelled: bool, labels: Path | None = None) -> RawData:
    if spec.split is not None:
        raise InvalidInput(f"'{spec.text}': '{path}' is one file and has no splits; leave out :{spec.split}")
    for each in (path, labels):
        if each is not None and not each.exists():
            raise DataNotFound(f"'{spec.text}' needs '{each.absolute()}', which is not there")
    return read_npy(path, labels, labelled) if path.suffix == ".npy" else read_npz(path, labelled)


def _read_folder(spec: Spec, folder: Path) -> RawData:
    # Arrays go before images: a folder prepared with train.npz may hold the images that it was made of.
    if any((folder / f"{each}.npz").is_file() for each in SPLITS):
        _refuse_resizing(spec)
        path = folder / f"{spec.split or 'train'}.npz"
        if not path.is_file():
            raise DataNotFound(f"'{spec.text}' needs '{path}', which is not there; it must hold {NPZ_CONTENT}")
        return _read_split(folder, "", spec.split or "train")
    parts = [folder / each for each in SPLITS if (folder / each).is_dir()]
    if not parts:
        if spec.split is not None:
            problem = f"'{folder}' has neither train nor test in it; leave out :{spec.split}"
            raise InvalidInput(f"'{spec.text}': {problem}")
        return read_images(folder, list_class_names([folder]), spec.resize)
    path = folder / (spec.split or "train")
    if path not in parts:
        raise DataNotFound(f"'{spec.text}' needs the folder '{path}', which is not there; '{parts[0]}' is")
    return read_images(path, list_class_names(parts), spec.resize)


# -- Python ------------------------------------------------------------------------------------------------------------


def _read_from_module(spec: Spec) -> RawData:
    """Collect the data that a Python module has under a name, or that the function of that name returns."""
    module, _, path = spec.source.partition(":")
    try:
        source = attribute(import_named(module), path)
    except InvalidInput as error:
        raise InvalidInput(
            f"there is no dataset '{module}' with a split '{path}', and nothing of that name in Python: {error}"
        ) from error
    # A Dataset or a loader may be callable as well; only what is nothing but a function is called.
    if callable(source) and not isinstance(source, (Dataset, DataLoader, Data)):
        try:
            source = source()
        except Exception as error:
            raise InvalidInput(f"{spec.source}() failed: {type(error).__name__}: {error}") from error
    if isinstance(source, Data):
        # As a network takes them, because data of a module comes without a mean and std beside it.
        return RawData(source.normalised(), source.labels, source.classes, has_labels=source.has_labels)
    return collect(source, f"'{spec.source}'")
