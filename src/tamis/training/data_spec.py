"""A dataset is specified by name, by path or by an object of a Python module, with a split, slices and settings.

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

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.errors import InvalidInput

SPLITS = ("train", "test")
FOLDER_VARIABLE = "TAMIS_DATA"
DEFAULT_FOLDER = "~/.cache/tamis/data"
LARGEST_SIDE = 2**15  # of an image that is resized
LARGEST_SEED = 2**63 - 1

# Of 18 digits at most, so that every number fits into 64 bits.
_NUMBER = "-?[0-9]{1,18}"
_SLICE = rf"\[((?:{_NUMBER})?):((?:{_NUMBER})?)(?::((?:{_NUMBER})?))?\]"
_SETTINGS = "resize|mean|std|held_out|rest"
_SETTING = rf"@({_SETTINGS})=([-+.,0-9eEx]+)"
_ENDING = re.compile(rf"{_SLICE}|{_SETTING}")
# The source is as short as can be, so that a split and all endings are taken off it.
_SPEC = re.compile(
    rf"(?P<source>[^:\[].*?)(?::(?P<split>{'|'.join(SPLITS)}))?(?P<ending>(?:{_SLICE}|{_SETTING})*)", re.DOTALL
)
_IN_MODULE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


@dataclass(frozen=True)
class Share:
    """A share is a part of the samples that is drawn at random: what is `held_out`, or the `rest`."""

    name: str
    part: float
    seed: int


@dataclass(frozen=True)
class Spec:
    """A spec is kept in its parts; `resize` is a height and a width, and `cuts` are made one after the other."""

    text: str
    source: str
    split: str | None = None
    cuts: tuple[slice | Share, ...] = ()
    resize: tuple[int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def in_module(self) -> bool:
        """Return whether the spec names something in a Python module, whose code runs when the data is read."""
        name = self.source.partition(":")[0]
        is_attribute = _IN_MODULE.fullmatch(self.source) is not None and self.split is None
        # A dataset in the data folder goes before a module of the same name, whose code need not run then.
        return (
            is_attribute and name != "digits" and not is_path(self.source) and name not in list_datasets(data_folder())
        )

    def splits(self) -> dict[str, str]:
        """Return the specs of both splits, or only this one if it names a split, a part, or data without splits."""
        # A file alone has no splits, code of a module names one thing, and a part of a split has no counterpart.
        has_both = not (self.split or self.cuts or self.source.endswith((".npz", ".npy")) or self.in_module)
        if not has_both:
            return {"train": self.text}
        # Endings follow the split in a spec: it goes in between.
        ending = self.text.removeprefix(self.source)
        return {split: f"{self.source}:{split}{ending}" for split in SPLITS}


def parse_spec(text: str) -> Spec:
    """Split a spec into its parts; the docstring of this module says how specs are written.

    Raises:
        InvalidInput: the text is no spec.
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
            cuts.append(_parse_slice(text, start, stop, step))
        elif name in ("held_out", "rest"):
            cuts.append(_parse_share(name, value, text))
        else:
            settings[name] = _parse_sizes(value, text) if name == "resize" else _parse_per_channel(name, value, text)
    if ("mean" in settings) != ("std" in settings):
        raise InvalidInput(f"mean and std go together, got '{text}'")
    return Spec(text, parts["source"], parts["split"], tuple(cuts), **settings)


def _parse_slice(spec: str, start: str, stop: str, step: str) -> slice:
    numbers = [int(text) if text else None for text in (start, stop, step)]
    if numbers[2] == 0:
        raise InvalidInput(f"the step of a slice cannot be 0, got '{spec}'")
    return slice(*numbers)


def _parse_share(name: str, text: str, spec: str) -> Share:
    part, _, seed = text.partition(",")
    try:
        share = Share(name, float(part), int(seed))
    except ValueError:
        # Not a number, and so it fails the comparison below, which has the message for all mistakes.
        share = Share(name, math.nan, 0)
    if not (0 < share.part < 1 and 0 <= share.seed <= LARGEST_SEED):
        expected = "a part of the samples, above 0 and below 1, a comma and a seed from 0 on, as 0.5,0"
        raise InvalidInput(f"{name} must be {expected}; got '{text}' in '{spec}'")
    return share


def _parse_sizes(text: str, spec: str) -> tuple[int, int]:
    sizes = text.split("x")
    if len(sizes) > 2 or not all(size.isdecimal() and 0 < int(size) <= LARGEST_SIDE for size in sizes):
        expected = f"a size or HEIGHTxWIDTH in pixels, as 64 or 48x64, at most {LARGEST_SIDE:,}"
        raise InvalidInput(f"resize must be {expected}; got '{text}' in '{spec}'")
    return int(sizes[0]), int(sizes[-1])


def _parse_per_channel(name: str, text: str, spec: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        # Not finite: the check below has the message for all mistakes.
        numbers = (math.nan,)
    if not all(math.isfinite(number) and (name == "mean" or number > 0) for number in numbers):
        expected = "numbers" if name == "mean" else "positive numbers"
        raise InvalidInput(f"{name} must be {expected} with commas between, one per channel; got '{text}' in '{spec}'")
    return numbers


def refuse_malformed(spec: str, name: str) -> None:
    """Raise InvalidInput for a name with a colon or bracket left after split, slices and settings are removed."""
    if setting := re.search(f"@({_SETTINGS})=", name):
        example = "@resize=64@mean=0.5@std=0.25@rest=0.5,0"
        raise InvalidInput(f"{setting[1]} takes numbers, as {example} at the end; got '{spec}'")
    if "[" in name or "]" in name:
        raise InvalidInput(f"a slice is [start:stop] or [start:stop:step] at the end, after the split, got '{spec}'")
    name, colon, split = name.partition(":")
    if colon:
        raise InvalidInput(f"'{spec}': there is no split '{split}'; write {name}:train or {name}:test")


def is_path(source: str) -> bool:
    return source.startswith((".", "~")) or source.endswith((".npz", ".npy")) or "/" in source or os.sep in source


def data_folder() -> Path:
    """Return the folder where datasets are looked up by name: $TAMIS_DATA, or else ~/.cache/tamis/data."""
    return Path(os.path.expanduser(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER))


def list_datasets(folder: Path) -> list[str]:
    files = (file.name for split in SPLITS for file in folder.glob(f"*_{split}.npz"))
    return sorted({name.rpartition("_")[0] for name in files})
