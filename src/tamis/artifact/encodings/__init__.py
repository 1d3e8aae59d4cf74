"""Encodings: exact ways of storing one tensor, of which a file takes the shortest for each.

To add one, write an `Encoding` in a file of its own, enter it in `ENCODINGS`, and bring a tensor that it accepts to
`SPECIMENS` in tests/contracts/test_encodings.py, which then checks all the rest. Its `encode` says what is stored, or
None for a tensor that it cannot give back bit for bit, with its mask and its codes; its `decode` gives them back from
that, and trusts nothing: what it reads may have been forged. What it stores is described in docs/format.md. An encoding
keeps its name and meaning for ever, since files out there name it; one that must change becomes a new one.
"""

from .base import Decoded as Decoded
from .base import Encoded as Encoded
from .base import Encoding as Encoding
from .dense import Dense as Dense
from .entropy import Entropy as Entropy
from .levels import Levels as Levels
from .narrow_float import Narrow as Narrow
from .sparse import Sparse as Sparse

ENCODINGS: dict[str, Encoding] = {
    encoding.name: encoding for encoding in (Dense(), Narrow(), Sparse(), Levels(), Entropy())
}


def shortest(decoded: Decoded) -> tuple[str, Encoded]:
    """Return the name and result of the encoding with the fewest bytes; among equals, the one registered first."""
    entropy = ENCODINGS[Entropy.name].encode(decoded)
    if entropy is not None:  # it accepts only what it makes shorter than the others do
        return Entropy.name, entropy
    encoded = {name: encoding.encode(decoded) for name, encoding in ENCODINGS.items() if name != Entropy.name}
    accepted = [(name, stored) for name, stored in encoded.items() if stored is not None]
    return min(accepted, key=lambda item: item[1].nbytes)
