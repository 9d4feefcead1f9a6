"""What dg-lsp says on a platform that it does not support."""

from __future__ import annotations

import subprocess
import sys


def test_windows_is_refused_in_one_sentence() -> None:
    code = "import sys, dg_lsp.__main__ as program; sys.platform = 'win32'; program.main()"
    process = subprocess.run([sys.executable, "-c", code, "serve"], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr == "dg-lsp: Windows is not supported. Run dg-lsp in WSL; Linux and macOS are supported.\n"
