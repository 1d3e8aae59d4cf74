"""An architecture says which connections a network has, as a value and as a file, without any weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tamis.artifact import Masks, named_parameters, replace_file, seen_filter
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters, join_names
from tamis.graph import NOTHING_SEEN, SeenSamples

MAGIC = b"tamis-architecture 1\n"
DIGEST_SIZE = hashlib.sha256().digest_size


class Architecture:
    """An architecture is the set of connections that a network keeps: a mask for each layer, by its weight's name.

    The file that `save` writes holds a line that names its kind, a line of JSON with names and shapes, the masks with
    eight connections a byte, and the sha256 of all this. The same masks give the same bytes. What samples they were
    found on stands beside the names, as much of it as fits into 2% of the file.

    Args:
        masks: boolean tensors by parameter, True where a connection is kept; copies are made, on the CPU.
        seen: the samples that they were found on.

    Example:
        >>> found = Architecture({"0.weight": torch.eye(4) > 0, "2.weight": torch.ones(2, 4) > 0})
        >>> found.save("found.architecture")
        >>> Architecture.load("found.architecture").densities
        {'0.weight': 0.25, '2.weight': 1.0}

    Reference: colombo2021architecture.
    """

    def __init__(self, masks: Mapping[str, Tensor], seen: SeenSamples = NOTHING_SEEN) -> None:
        own = Masks(masks)
        if not own.total:
            raise InvalidInput("an architecture needs a mask for at least one connection, got none")
        # Copies on the CPU: the caller may go on changing its masks, and files and comparisons need no device.
        self.masks = Masks({name: mask.detach().cpu().clone() for name, mask in own.items()})
        self.seen = seen

    def with_seen(self, seen: SeenSamples) -> Architecture:
        """Return the same connections, which remember that they were found on these samples."""
        return Architecture(self.masks, self.seen | seen)

    def __eq__(self, other: object) -> bool:
        # Two searches that find the same connections are equal, on whatever samples they found them.
        return isinstance(other, Architecture) and self._encode() == other._encode()

    def __hash__(self) -> int:
        return hash(self._encode())

    def __repr__(self) -> str:
        connections = self.masks.total - self.masks.pruned
        return f"Architecture({connections:,} of {self.masks.total:,} connections, {len(self.masks)} layers)"

    @property
    def sparsity(self) -> float:
        """Return the fraction of connections that is gone."""
        return self.masks.sparsity

    @property
    def densities(self) -> dict[str, float]:
        """Return the fraction of connections that is kept in each layer, 1ᵀm⁽ˡ⁾ / D⁽ˡ⁾ (section 3.3)."""
        return {name: int(mask.count_nonzero()) / max(mask.numel(), 1) for name, mask in self.masks.items()}

    @property
    def fingerprint(self) -> str:
        """Return the sha256 of the layers' names and shapes; networks with the same one can exchange masks."""
        lines = [f"{name} {tuple(mask.shape)}" for name, mask in sorted(self.masks.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def check_fits(self, model: nn.Module) -> None:
        """Raise InvalidParameters, naming the first layer that a model does not have or has in another shape."""
        shapes = {name: tuple(param.shape) for name, param in named_parameters(model).items()}
        for name, mask in self.masks.items():
            if name not in shapes:
                raise InvalidParameters(
                    f"this architecture is of another network: it masks '{name}', which {type(model).__name__} does "
                    f"not have; it has {join_names(shapes)}"
                )
            if shapes[name] != tuple(mask.shape):
                raise InvalidParameters(
                    f"this architecture is of another network: '{name}' has shape {tuple(mask.shape)} in it and "
                    f"{shapes[name]} in {type(model).__name__}; if only that layer differs, as the last one does for "
                    f"another number of classes, search with exclude='{name}'"
                )

    def save(self, path: str | Path) -> None:
        """Write the masks, and no weight, to a file, which appears whole or not at all."""
        # The list of samples may cost a share of what the file has anyway, counted in bytes that the whole file grows
        # by.
        plain = self._encode()
        room = seen_filter.compute_room(len(plain))
        text = seen_filter.encode_within(self.seen, lambda text: len(self._encode({"seen": text})) - len(plain), room)
        content = plain if text is None else self._encode({"seen": text})
        with replace_file(path) as part:
            part.write_bytes(content + hashlib.sha256(content).digest())

    @classmethod
    def load(cls, path: str | Path) -> Architecture:
        """Read what `save` wrote; raise CorruptArtifact for any other file, or one that has changed by a single bit."""
        file_bytes = Path(path).read_bytes()
        content, digest = file_bytes[:-DIGEST_SIZE], file_bytes[-DIGEST_SIZE:]
        # Before the sha256: a file of another kind is not a damaged one, and the message should say which it is.
        if not content.startswith(MAGIC):
            raise CorruptArtifact(f"{path} is not a file of an architecture, or one of another version of tamis")
        if hashlib.sha256(content).digest() != digest:
            raise CorruptArtifact(f"{path} is damaged: its content does not have the sha256 that stands at its end")
        try:
            line, _, packed = content[len(MAGIC) :].partition(b"\n")
            header = json.loads(line)
            return cls(_unpack(header["layers"], packed), seen_filter.read(path, header.get("seen")))
        except (ValueError, TypeError, KeyError, RuntimeError, OverflowError, InvalidInput) as error:
            # The sha256 is right, so that the file was written like this: whatever fails in reading it is the file's
            # fault.
            raise CorruptArtifact(f"{path} has the sha256 that it says, but holds no architecture ({error})") from error

    def _encode(self, more: Mapping[str, str] | None = None) -> bytes:
        """Return the file's content before the sha256, which is the same for the same masks in any order."""
        # By name, so that the same masks are the same bytes, in whatever order they were found.
        masks = dict(sorted(self.masks.items()))
        shapes = {name: list(mask.shape) for name, mask in masks.items()}
        bits = np.concatenate([mask.flatten().numpy() for mask in masks.values()])
        return MAGIC + json.dumps({"layers": shapes, **(more or {})}).encode() + b"\n" + np.packbits(bits).tobytes()


def _unpack(shapes: Any, packed: bytes) -> dict[str, Tensor]:
    if not isinstance(shapes, dict):
        raise ValueError(f"layers are {shapes!r:.80}")
    sizes = {name: _count_entries(shape) for name, shape in shapes.items()}
    total = sum(sizes.values())
    # `unpackbits` would take missing bits for zeros, which is to say for connections that are gone.
    if len(packed) != -(-total // 8):
        raise ValueError(f"{len(packed)} bytes for {total} connections")
    bits = torch.from_numpy(np.unpackbits(np.frombuffer(packed, np.uint8), count=total).astype(bool))
    parts = bits.split(list(sizes.values()))
    return {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}


def _count_entries(shape: Any) -> int:
    # By type, because JSON has true and false, and Python counts those as integers.
    if not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise ValueError(f"{shape!r} is no shape")
    return math.prod(shape)


def count_kept_connections(sparsity: float, total: int) -> int:
    """Count the connections of `total` that a sparsity keeps: all but round(sparsity · total), and at least one."""
    if isinstance(sparsity, bool) or not 0.0 <= sparsity < 1.0:
        raise InvalidInput(f"sparsity={sparsity!r} must be a fraction from 0 to less than 1")
    keep = total - round(sparsity * total)
    if keep < 1:
        raise InvalidInput(f"sparsity={sparsity!r} keeps none of {total:,} connections: choose a smaller one")
    return keep


def keep_largest(scores: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """Return masks of the `keep` largest scores of all layers together; among equal scores, keep the first.

    Example:
        >>> keep_largest({"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([3.0, 2.0])}, 1)
        {'a': tensor([False,  True]), 'b': tensor([False, False])}
    """
    flat = torch.cat([score.flatten() for score in scores.values()])
    flags = torch.zeros_like(flat, dtype=torch.bool)
    # Stable, so that ties are broken alike on every device; topk promises no order among equals.
    flags[flat.argsort(descending=True, stable=True)[:keep]] = True
    parts = flags.split([score.numel() for score in scores.values()])
    return {name: part.view(score.shape) for (name, score), part in zip(scores.items(), parts, strict=True)}
