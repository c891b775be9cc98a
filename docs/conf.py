"""Sphinx configuration; build with ``python -m sphinx -W -b html docs docs/_build/html``."""

from paceline import __version__

project = "Paceline"
author = "The Paceline authors"
copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
# Outputs of commands are no commands: an apostrophe opens no string there.
suppress_warnings = ["misc.highlighting_failure"]
html_theme = "furo"
html_title = f"Paceline {release}"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
python_use_unqualified_type_names = True
