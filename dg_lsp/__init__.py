"""Fill holes in code with a text-diffusion model, using the text on both sides."""

__version__ = "0.1.0"

INTERRUPTED = 130
"""The exit status after Ctrl-C."""
