"""The program of experiments, run in the process of the tests: to start another takes seconds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments import __main__


@pytest.fixture
def failing_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    """Run the program in an empty folder without data, and return its exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAMIS_DATA", str(tmp_path))

    def run(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            __main__.run_program(arguments)
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run
