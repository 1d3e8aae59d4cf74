"""The 8x8 handwritten digits that ship with the library are small enough to train on in seconds, offline.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
https://archive.ics.uci.edu/dataset/80, licensed CC BY 4.0. These are the 1797 images of its test file,
in their original order. `digits.npz` holds `x` (1797, 8, 8) with grey levels 0..16 and `y` (1797,), both uint8.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

_FILE = Path(__file__).with_name("digits.npz")
_TEST_IMAGES = 360
_DARKEST_LEVEL = 16


def digits(split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
    """Return the images, float32 (N, 1, 8, 8) in [0, 1], and the labels, int64 (N,), of one split.

    The last 360 images are the test split (N = 360), the others the training split (N = 1437). Every call returns fresh
    tensors.

    Example:
        >>> x, y = digits("test")
        >>> x.shape, y.shape
        (torch.Size([360, 1, 8, 8]), torch.Size([360]))
    """
    if split not in ("train", "test"):
        raise ValueError(f"digits has the splits 'train' and 'test', not {split!r}")
    rows = slice(None, -_TEST_IMAGES) if split == "train" else slice(-_TEST_IMAGES, None)
    with np.load(_FILE) as file:
        levels, labels = file["x"][rows], file["y"][rows]
    images = torch.from_numpy(levels).to(torch.float32).unsqueeze(1) / _DARKEST_LEVEL
    return images, torch.from_numpy(labels).to(torch.int64)
