"""What can go wrong, said in the user's own words: messages carry the names, shapes and values that were passed in."""


class TamisError(Exception):
    """Base of every error that tamis raises on purpose."""


class TraceError(TamisError):
    """The model could not be turned into a graph."""


class UnsupportedOp(TamisError):
    """A computation met an operation that does not offer what the computation needs."""

    def __init__(self, wanted_by: str, needed: str, op: str, module: str) -> None:
        self.wanted_by, self.needed, self.op, self.module = wanted_by, needed, op, module
        super().__init__(f"{wanted_by} needs {needed}: '{op}' at {module or 'the top level of the model'} is not")

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str]]:
        return UnsupportedOp, (self.wanted_by, self.needed, self.op, self.module)  # to cross between processes


class AssumptionViolated(TamisError):
    """A theorem was asked for where one of its assumptions fails."""


class InvalidParameters(TamisError):
    """Parameters with a wrong name, shape, or a value that is not finite."""


class InvalidInput(TamisError):
    """An argument of the wrong kind, shape or range."""


class CorruptArtifact(TamisError):
    """A file that is not what it claims to be: truncated, changed, or never a file of this kind."""


class DataNotFound(TamisError):
    """A dataset that is not there; the message says where to put it."""


class TrainingDiverged(TamisError):
    """The loss or a weight is no longer a finite number."""
