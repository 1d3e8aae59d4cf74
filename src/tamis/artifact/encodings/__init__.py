"""Encodings: exact ways of storing one tensor, of which a file takes the shortest for each.

To add one, write an `Encoding` and give it to `tamis.register_encoding`; `tamis.testing.check_encoding` checks it. Its
`encode` says what is stored, or None for a tensor that it cannot give back bit for bit, with its mask and its codes.
Its `decode` gives them back from that, and trusts nothing: what it reads may have been forged. What those that ship
store is described in docs/format.md. An encoding keeps its name and meaning for ever, since files out there name it;
one that must change becomes a new one.
"""

from tamis.errors import InvalidInput

from .base import Decoded as Decoded
from .base import Encoded as Encoded
from .base import Encoding as Encoding
from .dense import Dense as Dense
from .entropy import Entropy as Entropy
from .levels import Levels as Levels
from .narrow_float import Narrow as Narrow
from .sparse import Sparse as Sparse

__all__ = [
    "ENCODINGS",
    "Decoded",
    "Dense",
    "Encoded",
    "Encoding",
    "Entropy",
    "Levels",
    "Narrow",
    "Sparse",
    "register_encoding",
    "shortest",
]

ENCODINGS: dict[str, Encoding] = {
    encoding.name: encoding for encoding in (Dense(), Narrow(), Sparse(), Levels(), Entropy())
}


SHIPPED = frozenset(ENCODINGS)


def register_encoding(encoding: Encoding) -> Encoding:
    """Let files store tensors in yet another way, where it is shorter than all others.

    A file that has such a tensor can only be read where the encoding is registered, too; without it, the reader says
    which one is missing.

    Args:
        encoding: an object of a subclass of `Encoding` (tamis.artifact.encodings) with a name of its own.

    Returns:
        The same object.

    Raises:
        InvalidInput: it is no encoding, or its name is taken.

    Example:
        >>> tamis.register_encoding(RunLengths())
    """
    if not isinstance(encoding, Encoding):
        hint = ": pass an object of it, not the class" if isinstance(encoding, type) else ""
        raise InvalidInput(f"register_encoding needs an Encoding, got {encoding!r}{hint}")
    name = getattr(encoding, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidInput(f"{type(encoding).__name__}.name must be a word of letters, digits and _, got {name!r}")
    if name in ENCODINGS:
        raise InvalidInput(f"there is an encoding '{name}' already; known: {', '.join(ENCODINGS)}")
    ENCODINGS[name] = encoding
    return encoding


def shortest(decoded: Decoded) -> tuple[str, Encoded]:
    """Return the name and result of the encoding with the fewest bytes; among equals, the one registered first."""
    entropy = ENCODINGS[Entropy.name].encode(decoded)
    # Entropy accepts only what it makes shorter than the other shipped ones do: these need not be tried then.
    rivals = [name for name in ENCODINGS if name != Entropy.name and (entropy is None or name not in SHIPPED)]
    if entropy is not None and not rivals:
        return Entropy.name, entropy
    encoded = {Entropy.name: entropy} | {name: ENCODINGS[name].encode(decoded) for name in rivals}
    accepted = [(name, stored) for name, stored in encoded.items() if stored is not None]
    return min(accepted, key=lambda item: item[1].nbytes)
