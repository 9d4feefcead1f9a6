"""The command that installs optional packages of dg-lsp into the environment of this process."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata, util
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

# No package index has dg-lsp yet, so a user without its file can't name it.
_UNKNOWN = Path("/path/to/dg-lsp")


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra of dg-lsp, such as `engine`, from where dg-lsp itself was installed.

    If that wheel or checkout is not there any more, the command has a placeholder for its path.
    """
    python = shlex.quote(sys.executable)
    # An environment that uv made has no pip.
    pip = f"{python} -m pip install" if util.find_spec("pip") else f"uv pip install --python {python}"
    return f"{pip} {shlex.quote(f'{_source() or _UNKNOWN}[{extra}]')}"


def _source() -> Path | None:
    """Return the wheel or folder that dg-lsp was installed from, as pip recorded it (PEP 610); None if it is not there."""
    try:
        address = urlsplit(json.loads(metadata.distribution("dg-lsp").read_text("direct_url.json") or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    path = Path(url2pathname(address.path))
    return path if address.scheme == "file" and path.exists() else None
