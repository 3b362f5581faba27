"""The documentation site. `make docs` builds it without the network and treats warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import clearhead

project = "Clearhead"
author = "The Clearhead maintainers"
copyright = author
release = version = clearhead.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "mathml", "docstrings", "repository_links"]
exclude_patterns = ["_build", "extensions"]

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the tests execute the notebooks; the site shows what they stored
nb_render_markdown_format = "myst"
html_math_renderer = "mathml"

autosummary_generate = True
autodoc_typehints = "signature"
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "Clearhead"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_copyright = False
html_show_sphinx = False
pygments_style = "tango"
highlight_language = "none"  # blocks without a language are commands and their output
