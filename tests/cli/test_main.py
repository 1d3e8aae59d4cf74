"""The command itself: help without torch, version, how errors and interruptions end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import tamis
import tamis.cli.commands
from tamis.cli.main import SENTENCES, app
from tamis.errors import InvalidInput


def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)


DECLARED = Path(tamis.cli.commands.__file__).parent
COMMANDS = (
    "demo",
    "inspect",
    "prune",
    "quantize",
    "repair",
    "train",
    "search",
    "transfer",
    "binarize",
    "compile",
    "kronecker",
    "certify",
    "verify",
    "online",
    "report",
    "compress",
    "sweep",
    "recipes",
    "doctor",
)


def test_help_imports_neither_torch_nor_rich():
    asked = [["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)]
    script = f"""
import sys
from tamis.cli.main import main
for arguments in {asked!r}:
    sys.argv = ["tamis", *arguments]
    print("#", *arguments)
    try:
        main()
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
    heavy = {{"torch", "rich", "numpy", "safetensors"}} & set(sys.modules)
    if arguments == ["--help"]:  # typer itself may import it for a command's options
        heavy |= {{"pydantic"}} & set(sys.modules)
    assert not heavy, (arguments, heavy)
"""
    finished = run_python("-c", script)
    assert finished.returncode == 0, finished.stderr
    printed = [text.partition("\n")[2] for text in finished.stdout.split("\n# ")]
    assert len(printed) == len(asked) and all("tamis" in text for text in printed)


def test_python_dash_m_is_the_command():
    finished = run_python("-m", "tamis", "--version")
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, f"tamis {tamis.__version__}\n", "")


@pytest.mark.slow
def test_python_dash_m_takes_no_module_of_the_current_directory(tmp_path):
    for planted in ("typer", "click", "rich", "pydantic", "yaml", "torch", "numpy", "cryptography"):
        (tmp_path / f"{planted}.py").write_text("open('mark', 'w').close()")
    command, environment = [sys.executable, "-m", "tamis", "recipes"], {**os.environ, "PYTHONIOENCODING": "ascii"}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert not (tmp_path / "mark").exists()
    # What the output has no letters for is a question mark.
    assert "ternary" in finished.stdout and "?" in finished.stdout


def test_the_sentences_of_the_help_are_the_commands_own():
    commands = get_command(app).commands
    assert {*COMMANDS} == {*commands} == {path.stem for path in DECLARED.glob("[!_]*.py")}
    for name, command in commands.items():
        assert command.name == name and " ".join(command.help.partition("\n\n")[0].split()) == SENTENCES[name]


def test_help_lists_every_command():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(command in result.stdout for command in COMMANDS)


def test_commands_print_json_for_machines():
    assert all("--json" in options_of(command) for _, command in every_command(get_command(app)))


def every_command(group, above=""):
    for name, command in group.commands.items():
        called = f"{above} {name}".strip()
        if hasattr(command, "commands"):
            yield from every_command(command, called)
        else:
            yield called, command


def options_of(command):
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (InvalidInput("a wrong\nthing"), "error: a wrong thing\n"),
        (FileNotFoundError(2, "No such file or directory", "x.pt2"), "error: no such file or directory: x.pt2\n"),
        (PermissionError(13, "Permission denied", "x.pt2"), "error: permission denied: x.pt2\n"),
        (OSError(28, "No space left on device"), "error: no space left on device\n"),  # of what we print
    ],
)
def test_an_error_of_the_user_is_one_line_and_exit_code_2(monkeypatch, raised, line):
    monkeypatch.setattr("tamis.cli.demo.demo", failing_with(raised))
    result = CliRunner().invoke(app, ["demo"])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", line)


@pytest.mark.parametrize(("no_color", "red"), [("1", False), ("", True)])
def test_errors_are_red_unless_colors_are_not_wanted(monkeypatch, no_color, red):
    monkeypatch.setattr("tamis.cli.demo.demo", failing_with(InvalidInput("wrong")))
    result = CliRunner().invoke(app, ["demo"], color=True, env={"NO_COLOR": no_color})
    assert "error: wrong" in result.stderr and ("\x1b[" in result.stderr) is red


def test_an_interruption_exits_with_130(monkeypatch):
    monkeypatch.setattr("tamis.cli.demo.demo", failing_with(KeyboardInterrupt()))
    assert CliRunner().invoke(app, ["demo"]).exit_code == 130


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("tamis.cli.demo.demo", failing_with(ZeroDivisionError("a bug")))
    assert isinstance(CliRunner().invoke(app, ["demo"]).exception, ZeroDivisionError)


def failing_with(error: BaseException):
    def command(*_):
        raise error

    return command


@pytest.mark.parametrize("group", [(), ("sweep",), ("kronecker",)])
def test_the_list_of_commands_is_whole_at_80_columns(group):
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*group, "--help"]).stdout
    assert "..." not in shown.partition("Commands:")[2] and max(map(len, shown.splitlines())) <= 80
    words, listed = " ".join(shown.split()), get_command(app)
    for name in group:
        listed = listed.commands[name]
    for name, command in listed.commands.items():
        assert f"{name} {' '.join(command.help.partition(chr(10) * 2)[0].split())}" in words
