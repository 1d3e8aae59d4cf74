"""The errors that tamis raises; their messages repeat the names, shapes and values that the user passed in."""

from collections.abc import Iterable


def join_names(names: Iterable[str], most: int = 6) -> str:
    """Join the first few names with commas, for a message.

    Example:
        >>> join_names(["a", "b", "c"], most=2)
        'a, b, … (3 in all)'
    """
    names = list(names)
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


class TamisError(Exception):
    """Base of every error that tamis raises on purpose."""


class TraceError(TamisError):
    """The model could not be turned into a graph."""


class UnsupportedOp(TamisError):
    """A computation met an operation that does not offer what the computation needs."""

    def __init__(self, wanted_by: str, needed: str, op: str, module: str, advice: str = "") -> None:
        self.wanted_by, self.needed, self.op, self.module, self.advice = wanted_by, needed, op, module, advice
        what = f"{wanted_by} needs {needed}: '{op}' at {module or 'the top level of the model'} is not"
        super().__init__(f"{what}; {advice}" if advice else what)

    def __reduce__(self) -> tuple[type, tuple[str, ...]]:  # to cross between processes
        return UnsupportedOp, (self.wanted_by, self.needed, self.op, self.module, self.advice)


class AssumptionViolated(TamisError):
    """A theorem was asked for where one of its assumptions fails."""


class InvalidParameters(TamisError):
    """Parameters with a wrong name, shape, or a value that is not finite."""


class InvalidInput(TamisError):
    """An argument of the wrong kind, shape or range."""


class CorruptArtifact(TamisError):
    """A file that is not what it claims to be: truncated, changed, or never a file of this kind."""


class UntrustedFile(TamisError):
    """A file that could run code of whoever made it."""


class DataNotFound(TamisError):
    """A dataset that is not there; the message says where to put it."""


class TrainingDiverged(TamisError):
    """The loss or a weight is no longer a finite number."""


class VerificationFailed(TamisError):
    """A certificate that does not hold for what it was shown: another file, model or data, or changed numbers."""
