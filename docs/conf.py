"""How the pages become a site: `make docs`, then open out/docs/index.html."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
STORED = [HERE / "results", HERE.parent / "experiments" / "results"]
sys.path.insert(0, str(HERE))  # for results_pages

from results_pages import write_results_pages  # noqa: E402

from tamis import __version__  # noqa: E402

project = "tamis"
author = "the tamis authors"
project_copyright = "the tamis authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"tamis {release}"
html_show_sourcelink = False
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Formulas in docstrings stand as code does, and a Markdown link to a stored file is a download.
suppress_warnings = ["myst.xref_missing", "docutils", "ref.python"]


def setup(app: Sphinx) -> None:
    """Pages of stored figures are written anew at each build."""
    app.connect("builder-inited", lambda app: write_results_pages(STORED, HERE / "generated"))
