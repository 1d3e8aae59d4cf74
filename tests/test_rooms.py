"""A room that is a call as well stays both, whatever is imported first."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest

import tamis
import tamis.prune.select
from tamis.prune import prune
from tamis.rooms import CallableRoom, make_callable


@pytest.mark.parametrize(
    "lines",
    [
        "import tamis; call(tamis.prune); import tamis.prune.compare; tamis.prune.compare.overlap; call(tamis.prune)",
        "import tamis.prune.select; call(tamis.prune); tamis.prune.select.keep_all_but_smallest",
        "from tamis.prune.compare import overlap; import tamis; call(tamis.prune)",
        "from tamis import prune; call(prune); import tamis.prune.compare; prune.compare.overlap",
        "from tamis.prune import prune; call(prune); import tamis; call(tamis.prune); call(tamis.prune.prune)",
    ],
)
def test_the_call_and_the_room_are_both_there(lines: str) -> None:
    """In a fresh interpreter, since what is imported first decides."""
    call = "def call(prune):\n    try: prune('no network', 2)\n    except Exception as error: print(error)\n"
    done = subprocess.run(
        [sys.executable, "-c", call + lines],
        env={**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    said = "prune needs a Network, a Compressed or a module, got str"
    assert done.returncode == 0 and done.stdout.splitlines() == [said] * lines.count("call("), done.stderr


def test_it_shows_the_signature_of_its_call() -> None:
    assert inspect.signature(tamis.prune) == inspect.signature(prune)
    assert list(inspect.signature(tamis.prune).parameters)[:3] == ["net", "amount", "by"]
    assert callable(tamis.prune) and isinstance(tamis.prune, types.ModuleType)
    assert tamis.prune.select.keep_all_but_smallest is not None


def test_a_room_passes_its_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    room = types.ModuleType("a_room")
    monkeypatch.setitem(sys.modules, "a_room", room)
    make_callable("a_room", lambda *args, **kwargs: (args, kwargs))
    assert isinstance(room, CallableRoom)
    assert room(1, 2, three=3) == ((1, 2), {"three": 3})


def test_help_shows_the_function_and_a_room_is_pickled_by_name() -> None:
    assert tamis.prune.__doc__ is not None and "Set the weights that matter least to zero" in tamis.prune.__doc__
    assert pickle.loads(pickle.dumps(tamis.prune)) is tamis.prune
