"""Public names, citations, and that importing tamis costs nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tamis
from tamis.citations import CITATIONS, citation, cite, reference

SOURCE = Path(__file__).parents[1] / "src" / "tamis"


def test_every_public_name_resolves_and_has_a_docstring() -> None:
    for name in tamis.__all__:
        assert getattr(tamis, name).__doc__, name
    assert set(tamis.__all__) <= set(dir(tamis))
    with pytest.raises(AttributeError, match="no attribute 'prnue'"):
        tamis.prnue  # noqa: B018


def test_public_names_are_declared_for_type_checkers_too() -> None:
    declared = set(re.findall(r"^    from [\w.]+ import \w+ as (\w+)$", (SOURCE / "__init__.py").read_text(), re.M))
    assert declared == set(tamis.__all__)


def test_importing_tamis_does_not_import_torch() -> None:
    code = "import sys, tamis, tamis.errors, tamis.citations; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_citations_named_in_the_code_exist() -> None:
    named = {
        key
        for path in SOURCE.rglob("*.py")
        for key in re.findall(r"Reference: ([a-z]+\d{4}[a-z]*)\.", path.read_text())
    }
    assert named
    for key in named:
        assert citation(key).startswith("@")


def test_citations_are_bibtex_under_their_own_key() -> None:
    for key, entry in CITATIONS.items():
        assert re.match(rf"@\w+\{{{key},", entry)
        assert entry.count("{") == entry.count("}")
    with pytest.raises(KeyError, match=r"no citation 'nobody'; known: .*gonon2024thesis"):
        citation("nobody")


def test_works_are_cited_as_people_do() -> None:
    assert cite("gonon2024thesis, Theorem 3.4.1") == "Gonon (2024), Theorem 3.4.1"
    assert cite("clopper1934confidence, upper limit") == "Clopper and Pearson (1934), upper limit"
    assert cite("zhang2018crown") == "Zhang et al. (2018)"
    assert reference("chee2021xnor") == "Andrew Chee, Sébastien Loustau (2021): Sparsity Regret bounds for XNOR-nets++"


def test_no_citation_has_anything_left_of_bibtex() -> None:
    for key in CITATIONS:
        assert not re.search(r"[{}$\\_]|  ", cite(key) + reference(key))
