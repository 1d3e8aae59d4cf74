"""An encoding is an exact way of storing one tensor; a file takes the shortest one for each tensor.

To add one, write an `Encoding` and give it to `tamis.register_encoding`; `tamis.testing.check_encoding` checks it. Its
`encode` returns what to store, or None for a tensor that it cannot give back bit for bit, with its mask and its codes.
Its `decode` gives them back, and trusts nothing: the parts may have been forged. docs/format.md describes what the
shipped encodings store. An encoding keeps its name and meaning for ever, since existing files name it; an encoding that
must change becomes a new one.
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
    """Register another encoding, which files then use for each tensor that it stores in the fewest bytes.

    A file that has such a tensor can only be read where the encoding is registered, too; without it, the reader says
    which one is missing.

    Args:
        encoding: an object of a subclass of `Encoding` (tamis.artifact.encodings) with a name of its own.

    Returns:
        The same object.

    Raises:
        InvalidInput: it is no encoding, or its name is taken.

    Example:
        >>> tamis.register_encoding(ENCODINGS["dense"])
        Traceback (most recent call last):
        tamis.errors.InvalidInput: ...
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
