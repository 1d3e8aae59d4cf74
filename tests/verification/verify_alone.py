"""Verify every certificate of a folder where nothing that compresses or issues can be imported: `verify_alone.py DIR`.

`binary` and `kronecker` are not barred: they hold the layers that some files have, and a network must be run to be
judged. What they are rebuilt by is theirs, not a compressor's.
"""

import json
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

BARRED = (
    "architecture",
    "bayes",
    "certificates",
    "cli",
    "l1inf",
    "layerwise",
    "pruning",
    "quantization",
    "recipes",
    "reports",
    "sweeps",
)


class Bar:
    """A finder that raises for packages which a verifier must not need."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Raise ImportError for what is barred, and leave everything else to the finders that follow."""
        parts = name.split(".")
        if parts[0] == "tamis" and len(parts) > 1 and parts[1] in BARRED:
            raise ImportError(f"a verifier imports {name}")


sys.meta_path.insert(0, Bar())

import torch  # noqa: E402

import tamis  # noqa: E402
from tamis.artifact import File  # noqa: E402


def import_barred() -> str:
    """Return what the import of a compressor is answered with."""
    try:
        import tamis.quantization  # noqa: F401
    except ImportError as refusal:
        return str(refusal)
    return "nothing"


def main(folder: Path) -> None:
    """Print what was found of each certificate, as JSON."""
    model = torch.load(folder / "model.pt", weights_only=False)  # the test's own
    net = pickle.loads((folder / "network.pickle").read_bytes())
    held_out, training = torch.load(folder / "data.pt", weights_only=True)
    found: dict[str, object] = {"barred": import_barred()}
    for path in sorted(folder.glob("*.json")):
        asked = tamis.Certificate.load(path).content
        kind = path.stem
        file = File.read(folder / f"{kind if kind in ('binary', 'kronecker') else 'small'}.tamis")
        rebuilt = model if kind in ("binary", "kronecker") else None
        inputs, labels = ("digits:test[:40]", None) if kind == "named" else held_out
        verification = tamis.verify(
            path,
            file,
            net,
            inputs,
            None if asked["data"]["labels"] is None else labels,
            rebuilt=rebuilt,
            training=training if asked["training"] else None,
        )
        found[kind] = {"ok": verification.ok, "recomputed": verification.recomputed}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
