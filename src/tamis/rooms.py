"""Rooms that are calls as well: `tamis.prune(net, 0.8)` beside `tamis.prune.iterative`.

A package and a function cannot share one name: whichever is imported last would hide the other. So the package itself
is made callable.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableRoom(ModuleType):
    """A package that can be called."""

    call: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return import_module, (self.__name__,)  # pickled by name, as functions are


def make_callable(room: str, function: Callable[..., Any]) -> None:
    """Calling the package `room` calls `function` from now on."""
    package = sys.modules[room]
    package.__class__ = CallableRoom
    # What `help` shows is the function, which is what people ask about.
    vars(package).update(call=function, __signature__=inspect.signature(function), __doc__=function.__doc__)
