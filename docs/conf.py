"""Sphinx's configuration for this site: `scripts/docs` builds it.

MyST reads the same Markdown as a code host does; Breathe takes the C++ reference from Doxygen, autodoc the Python reference from
docstrings, and programoutput the command line's from `--help`.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ["SPARSESYNC_BUILD_DIR"])  # with the compiled program and package

sys.path.insert(0, str(BUILD / "python"))
os.environ["PATH"] = f"{BUILD / 'bin'}:{os.environ['PATH']}"

project = "sparsesync"
copyright = "the sparsesync authors"
version = release = re.search(r"project\(sparsesync VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)

extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.programoutput", "sphinx_copybutton"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "sparsesync"
html_show_copyright = False
pygments_style, pygments_dark_style = "default", "github-dark"

breathe_projects = {"sparsesync": str(ROOT / "build/site/api/xml")}
breathe_default_project = "sparsesync"
breathe_default_members = ("members",)
breathe_show_include = False
suppress_warnings = ["duplicate_declaration.cpp"]  # each header's page declares namespace sparsesync

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_mock_imports = ["lightning", "ray"]  # the reference does not depend on installed frameworks
autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

copybutton_exclude = ".linenos, .gp, .go"


def link_files_outside_of_the_site(app, docname, source):
    """Makes links to Markdown files outside docs/ downloads; MyST does so for files of other types by itself."""
    source[0] = re.sub(r"\]\(((?:\.\./)+(?:README|CONTRIBUTING|SECURITY|CHANGELOG|[a-z]\w*/README)\.md)\)", r"](<path:\1>)", source[0])


def setup(app):
    app.connect("source-read", link_files_outside_of_the_site)
