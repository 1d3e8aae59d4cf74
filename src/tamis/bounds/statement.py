"""A statement of a theorem names the work that it comes from, whether it is a bound or a rate."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tamis.citations import CITATIONS
from tamis.errors import InvalidInput


class Statement:
    """A statement has a source, which begins with a citation key, and terms, which cannot change."""

    source: str
    terms: Mapping[str, float]

    def __post_init__(self) -> None:
        if self.citation not in CITATIONS:
            raise InvalidInput(f"the source '{self.source}' does not begin with a citation key and a comma")
        object.__setattr__(self, "terms", MappingProxyType(dict(self.terms)))

    @property
    def citation(self) -> str:
        """Return the key of the work in `tamis.citations`."""
        return self.source.split(",")[0]
