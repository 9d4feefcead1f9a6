"""`python -m dg_lsp` is `dg-lsp`."""

from dg_lsp.cli import main

if __name__ == "__main__":
    main()
