"""Encodings: exact ways of storing one tensor, of which a file takes the shortest for each.

To add one, write an `Encoding` in a file of its own, enter it in `ENCODINGS`, and bring a tensor that it accepts to
`SPECIMENS` in tests/contracts/test_encodings.py, which then checks all the rest. Its `encode` says what is stored, or
None for a tensor that it cannot give back bit for bit; its `decode` gives the tensor back from that, and trusts
nothing: what it reads may have been forged. What it stores is described in docs/format.md. An encoding keeps its name
and meaning for ever, since files out there name it; one that must change becomes a new one.
"""

from torch import Tensor

from .base import Encoded as Encoded
from .base import Encoding as Encoding
from .dense import Dense as Dense
from .narrow import Narrow as Narrow
from .sparse import Sparse as Sparse

ENCODINGS: dict[str, Encoding] = {encoding.name: encoding for encoding in (Dense(), Narrow(), Sparse())}


def shortest(tensor: Tensor, mask: Tensor | None) -> tuple[str, Encoded]:
    """The name and result of the encoding with the fewest bytes; among equals, of the one registered first.

    Args:
        tensor: contiguous, on the CPU.
        mask: which of its entries are kept; all others are zero. None: it has no mask.
    """
    encoded = {name: encoding.encode(tensor, mask) for name, encoding in ENCODINGS.items()}
    accepted = [(name, stored) for name, stored in encoded.items() if stored is not None]
    return min(accepted, key=lambda item: item[1].nbytes)
