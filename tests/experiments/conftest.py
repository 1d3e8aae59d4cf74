"""The program of experiments, run in the process of the tests: to start another takes seconds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments import __main__


@pytest.fixture
def unrendered_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are composed and have their files, but are not rendered, which takes most of a second for each."""
    monkeypatch.setattr("tamis.reports.figures._write", lambda figure, path: Path(path).write_text("<svg></svg>"))


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
