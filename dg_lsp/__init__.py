"""Fill holes in code with a text-diffusion model, using the text on both sides."""

__version__ = "0.1.0"

# No package index has it yet: it is installed from a checkout.
ENGINE_INSTALL = "pip install '/path/to/dg-lsp[engine]'"
INTERRUPTED = 130
"""The exit status after Ctrl-C."""
