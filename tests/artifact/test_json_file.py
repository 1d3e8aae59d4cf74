"""JSON that a run keeps for itself is read back whole, or refused in one line."""

import pytest

from tamis.artifact.json_file import read_json_object
from tamis.errors import CorruptArtifact


def test_an_object_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"é": [1, null]}', encoding="utf-8")
    assert read_json_object(tmp_path / "a.json", "delete it") == {"é": [1, None]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "it is not JSON"),
        (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "it is not JSON"),
        (b"1" * 10_000, "it is not JSON"),
        (b"[1]", "it holds [1]"),
    ],
    ids=["empty", "broken", "no text", "deep lists", "deep objects", "long number", "list"],
)
def test_anything_else_is_refused_in_one_line(tmp_path, content, reason):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(CorruptArtifact) as caught:
        read_json_object(tmp_path / "a.json", "delete it")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'a.json'} is damaged: {reason}") and message.endswith("; delete it")
    assert "\n" not in message and len(message) < 500
