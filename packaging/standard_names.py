"""Write the table of names that Python's standard library offers.

Run it with: python packaging/standard_names.py
`dg_lsp.core.importing` reads it. The table comes from the modules of the Python that runs this script, so that no
other process has to import them. Modules that write to the screen, need a display or were removed by 3.13 are left out,
and so are constants in capitals, which are too many to be useful.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from pathlib import Path

TABLE = Path(__file__).parents[1] / "dg_lsp" / "core" / "importing" / "python_names.txt"
LEFT_OUT = frozenset(
    """
    __future__ aifc antigravity asynchat asyncore audioop builtins cgi cgitb chunk crypt curses distutils encodings
    ensurepip genericpath idlelib imghdr imp lib2to3 mailcap msilib msvcrt nis nntplib nt ntpath nturl2path opcode
    ossaudiodev pdb pipes posix posixpath pydoc pydoc_data pyexpat smtpd sndhdr spwd sre_compile sre_constants sre_parse
    sunau symbol telnetlib termios test this tkinter turtle turtledemo uu venv winreg winsound xdrlib
    """.split()  # noqa: SIM905  # lines of one name each are harder to read
)
SUBMODULES = (
    *("collections.abc", "concurrent.futures", "email.message", "email.mime.multipart", "email.mime.text", "email.utils"),
    *("html.parser", "http.client", "http.server", "importlib.metadata", "importlib.resources", "importlib.util"),
    *("logging.handlers", "multiprocessing.pool", "unittest.mock", "urllib.error", "urllib.parse", "urllib.request"),
    *("wsgiref.simple_server", "xml.etree.ElementTree", "xml.sax.saxutils"),
)


def main() -> None:
    warnings.simplefilter("ignore")
    table: dict[str, set[str]] = {}
    for module in sorted({*sys.stdlib_module_names, *SUBMODULES}):
        if module.startswith("_") or module.partition(".")[0] in LEFT_OUT:
            continue
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            continue
        public = [name for name, value in vars(loaded).items() if _is_own(value, module)]
        names = {name for name in getattr(loaded, "__all__", public) if name.isidentifier()}
        table[module] = {name for name in names if not name.startswith("_") and not _is_constant(name, vars(loaded).get(name))}
    # `typing` repeats names of other modules, and should be used for none of them.
    table["typing"] -= set().union(*(table[name] for name in ("collections", "collections.abc", "contextlib", "re")))
    lines = (f"{module}: {' '.join(sorted(names))}".rstrip() for module, names in table.items())
    TABLE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _is_own(value: object, module: str) -> bool:
    """Return whether a module without `__all__` defines the value, and did not import it from another public module."""
    home = str(getattr(value, "__module__", None) or module).partition(".")[0]
    return not isinstance(value, types.ModuleType) and (home.startswith("_") or home in (module.partition(".")[0], "builtins"))


def _is_constant(name: str, value: object) -> bool:
    return name.isupper() and len(name) > 1 and not isinstance(value, type)


if __name__ == "__main__":
    main()
