"""Find the names that a text imports, as written, with one function for each import syntax.

These functions use patterns, because they must work in code that does not parse. They read no files. `languages` says
which language uses which function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

Find = Callable[[str], Iterable[str]]


def nothing(_text: str) -> Iterable[str]:
    """Return no names."""
    return ()


def python(text: str) -> Iterator[str]:
    """Yield the imported modules, and the names imported from them, which may be modules too."""
    for match in re.finditer(
        r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\r\n#;]*)|import[ \t]+([^\r\n#;]*))", text, re.MULTILINE
    ):
        module, symbols, modules = match.groups()
        listed = [re.split(r"\s", name.strip())[0] for name in re.sub(r"[()\\]|#.*", " ", symbols or modules or "").split(",")]
        if module is None:
            yield from filter(None, listed)
        else:
            if module.strip("."):
                yield module
            # `from package import module` looks the same as importing a function, so both readings are returned.
            yield from (f"{module.rstrip('.')}.{name}" for name in listed if name and name != "*")


def java(text: str) -> Iterator[str]:
    """Yield the imported classes and packages."""
    for match in re.finditer(r"^\s*import\s+(static\s+)?([\w.]+?)(\.\*)?\s*;", text, re.MULTILINE):
        name = match[2]
        yield name.rpartition(".")[0] if match[1] and not match[3] else name


def rust(text: str) -> Iterator[str]:
    """Yield the paths of modules and of the items used from them."""
    for match in re.finditer(r"\b(?:use\s+([\w:]+?)(?:::\{([^;]*)\}|::\*)?(?:\s+as\s+\w+)?\s*;|mod\s+(\w+)\s*;)", text):
        path, listed, module = match.groups()
        if module:
            yield module
            continue
        yield path
        if "::" in path and not listed:
            # The last part is as often a type as a module.
            yield path.rpartition("::")[0]
        yield from (f"{path}::{name.strip()}" for name in (listed or "").split(",") if re.fullmatch(r"[\w:]+", name.strip()))


def go(text: str) -> Iterator[str]:
    """Yield the paths of the imported packages."""
    for block in re.finditer(r'^import\s*(?:\(([^)]*)\)|([\w.]+\s+)?("[^"]+"))', text, re.MULTILINE):
        yield from re.findall(r'"([^"]+)"', block[1] or block[3])


def _matches(pattern: str) -> Find:
    compiled = re.compile(pattern, re.MULTILINE)
    return lambda text: (match[match.lastindex or 0] for match in compiled.finditer(text))


javascript = _matches(r"""\b(?:from|import)\s*["']([^"'\n]+)["']|\b(?:require|import)\s*\(\s*["']([^"'\n]+)["']\s*\)""")
c = _matches(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\r\n]+)"|<([^>\r\n]+)>)')
csharp = _matches(r"^\s*(?:global\s+)?using\s+(?:static\s+)?(?:\w+\s*=\s*)?([\w.]+)\s*;")
ruby = _matches(r"""^\s*(?:require|require_relative|load|autoload\s+:\w+,)\s*\(?\s*["']([^"'\r\n]+)["']""")
php = _matches(r"""^\s*use\s+(?:function\s+|const\s+)?([\w\\]+)|\b(?:require|include)(?:_once)?\b[^;"']*["']([^"'\r\n]+)["']""")
bash = _matches(r"""^\s*(?:source|\.)\s+["']?(?:[^"'\s;]*\}?/)?([^"'\s;/]+)""")
lua = _matches(r"""\brequire\s*\(?\s*["']([^"'\r\n]+)["']""")
