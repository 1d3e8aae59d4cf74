"""YAML with places: where each part stands, and what YAML itself lets through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis.recipes.yaml_document import Document, RecipeError, format_path

BOMB = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))])
TEXT = """name: mine
steps:
  - step: prune
    amount: 0.5
  - {step: quantize, levels: 3}
"""


@pytest.mark.parametrize(
    ("path", "key", "line", "column"),
    [
        ((), False, 1, 1),
        (("name",), False, 1, 7),
        (("name",), True, 1, 1),
        (("steps",), True, 2, 1),
        (("steps", 0), False, 3, 5),
        (("steps", 0, "amount"), False, 4, 13),
        (("steps", 0, "amount"), True, 4, 5),
        (("steps", 1, "levels"), False, 5, 30),
        (("steps", 1, "missing"), False, 5, 5),  # the part that is there
        (("steps", 7), False, 3, 3),
    ],
)
def test_places(path: tuple[str | int, ...], key: bool, line: int, column: int) -> None:
    error = Document(TEXT, "my.yaml").error(path, "wrong", key=key)
    assert (error.line, error.column, error.path) == (line, column, format_path(path))
    said = f"{format_path(path)}: wrong" if path else "wrong"
    assert str(error) == f"my.yaml:{line}:{column}: {said}"


def test_a_part_of_a_document_keeps_its_places() -> None:
    part = Document("lock: 1\nrecipe:\n  steps: []\n", "a.yaml").below(("recipe",))
    assert part.data == {"steps": []}
    assert str(part.error(("steps",), "empty")) == "a.yaml:3:10: steps: empty"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: [", "my.yaml:1:9: this is not YAML: "),
        ("a: 1\n\tb: 2\n", "my.yaml:2:1: this is not YAML: "),
        ("a: 1\nb: 2\na: 3\n", "my.yaml:3:1: a: this key is here twice"),
        ("steps:\n- {step: prune, step: prune}\n", "my.yaml:2:17: steps[0].step: this key is here twice"),
        ("? [1, 2]\n: 3\n", "my.yaml:1:3: a key must be a word"),
        ("a: &x [*x]\n", "my.yaml:1:4: a[0]: it contains itself"),
        ("a: 1\n---\nb: 2\n", "my.yaml:2:1: this is not YAML: "),
        ("when: 2026-13-45\n", "my.yaml: this is not YAML: "),
        ("a: 1\nb: x\0y\n", "my.yaml:2:5: this is not YAML: it has the character 0x0, which YAML does not allow"),
        ("a: \x07\n", "my.yaml:1:4: this is not YAML: it has the character 0x7, which YAML does not allow"),
        ('a: {b: "x\\0y"}\n', "my.yaml:1:8: a.b: it has the character NUL, which no name or path may have"),
        ('"x\\0": 1\n', "my.yaml:1:1: it has the character NUL, which no name or path may have"),
        ("a: !!python/object:os.system x\n", "my.yaml:1:4: this is not YAML: "),
        ("[" * 200 + "]" * 200, "my.yaml:1:102: it has more than 100 levels of nesting"),
        ("[" * 999 + "]" * 999, "my.yaml: it is nested too deeply to be read"),
        (BOMB, "my.yaml:1:10: it has more than 100,000 parts, with its aliases"),
    ],
)
def test_what_is_no_yaml(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        Document(text, "my.yaml")
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("-2E5", -2e5), (".5e1", 5.0), ("1.5", 1.5), ("3", 3), ("e3", "e3"), ("1e", "1e")],
)
def test_numbers_are_what_they_look_like(text: str, value: object) -> None:
    found = Document(f"a: {text}", "my.yaml").data["a"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name: café\n".encode("latin-1"), "my.yaml:1:10: this is not UTF-8, as YAML must be: byte 0xe9"),
        ("é: 1\nà: ".encode() + b"\xff", "my.yaml:2:4: this is not UTF-8, as YAML must be: byte 0xff"),
        (b"\xef\xbb\xbfa: \xff", "my.yaml:1:4: this is not UTF-8, as YAML must be: byte 0xff"),
        ("name: x\n".encode("utf-16"), "my.yaml:1:1: this is not UTF-8, as YAML must be: byte 0xff"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_bytes(content)
    with pytest.raises(RecipeError) as raised:
        Document.read("my.yaml")
    assert str(raised.value) == message


def test_files_as_editors_write_them(tmp_path: Path) -> None:
    for number, text in enumerate(("\ufeffname: é\r\nsteps: []\r\n", "name: é\nsteps: []\n")):
        path = tmp_path / f"{number}.yaml"
        path.write_bytes(text.encode())
        document = Document.read(path)
        assert document.data == {"name": "é", "steps": []}
        assert str(document.error(("steps",), "none")) == f"{path}:2:8: steps: none"


def test_an_empty_text_is_nothing() -> None:
    assert Document("", "my.yaml").data is None
    assert str(Document("", "my.yaml").error((), "nothing here")) == "my.yaml: nothing here"
