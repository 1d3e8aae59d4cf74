"""The works that tamis implements: key → BibTeX. Every bound and method names its key in its docstring."""

CITATIONS: dict[str, str] = {
    "gonon2024thesis": """@phdthesis{gonon2024thesis,
  author = {Antoine Gonon},
  title  = {Harnessing symmetries for modern deep learning challenges: a path-lifting perspective},
  school = {\\'Ecole normale sup\\'erieure de Lyon},
  year   = {2024}
}""",
}


def citation(key: str) -> str:
    """The BibTeX entry of a work."""
    if key not in CITATIONS:
        raise KeyError(f"no citation '{key}'; known: {', '.join(sorted(CITATIONS))}")
    return CITATIONS[key]
