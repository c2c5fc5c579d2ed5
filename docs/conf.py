"""Sphinx: the documents and the reference of the public Python functions, from their docstrings (`make docs`)."""

from diffusionlens import __version__

project = "diffusionlens"
author = "the diffusionlens authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"diffusionlens {release}"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"Tensor": "torch.Tensor"}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
