"""Write the settings where people read them: VS Code's schema, and tables in CONFIGURATION.md and editors/PROTOCOL.md.

`python -m tests.pages.settings --write`, or `make settings`, rewrites them in a checkout; without `--write` it exits
with 1 when one is out of date, which a test asks as well. Knows where these files are in a checkout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from dg_lsp.wire import config
from dg_lsp.wire.config import AUTO, SECTION, Setting
from dg_lsp.wire.settings import DEFAULTS

# The heading in VS Code for each group of settings, in display order.
GROUPS = {"completion": "Suggestions", "engine": "Model", "actions": "Fills and context", "context": "Fills and context"}
BEGIN, END = "<!-- settings: written by `make settings` -->", "<!-- end of settings -->"


def configuration_page(text: str) -> str:
    """Return CONFIGURATION.md with its table as the settings are declared."""
    rows = [
        (
            f"`{setting.key}`",
            f"`{json.dumps(default_of(setting))}`",
            f"`{setting.variable}`" if setting.variable else "",
            setting.about.text,
            setting.about.change,
        )
        for setting in config.SETTINGS
    ]
    head = ("key", "default", "variable", "what it does", "when to change it")
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return _with_settings(text, "\n".join(f"| {' | '.join(line)} |" for line in lines))


def protocol_page(text: str) -> str:
    """Return editors/PROTOCOL.md with the keys that editors may send."""
    return _with_settings(text, ", ".join(f"`{setting.editor_key}`" for setting in config.OF_EDITORS) + ".")


def code_manifest(text: str) -> str:
    """Return VS Code's package.json with the server's settings rewritten; the client's own settings follow them."""
    manifest = json.loads(text)
    own = (f"{SECTION}.client.", f"{SECTION}.trace.")
    own_properties = {
        key: value
        for group in manifest["contributes"]["configuration"]
        for key, value in group["properties"].items()
        if key.startswith(own)
    }
    groups: dict[str, dict[str, dict[str, object]]] = {title: {} for title in GROUPS.values()}
    for setting in config.OF_EDITORS:
        title = GROUPS.get(setting.editor_key.partition(".")[0], GROUPS["completion"])
        groups[title][f"{SECTION}.{setting.editor_key}"] = _property(setting)
    groups["This editor"] = own_properties
    manifest["contributes"]["configuration"] = [
        # Without an order, VS Code would sort the settings by name.
        {"title": title, "properties": {key: {**each, "order": place} for place, (key, each) in enumerate(group.items())}}
        for title, group in groups.items()
    ]
    return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


PAGES = {
    "CONFIGURATION.md": configuration_page,
    "editors/PROTOCOL.md": protocol_page,
    "editors/vscode/package.json": code_manifest,
}


def default_of(setting: Setting) -> object:
    """Return the default value, as it is written in a file."""
    value = getattr(DEFAULTS, setting.field)
    return AUTO if value is None else list(value) if isinstance(value, tuple | frozenset) else value


def schema_of(setting: Setting) -> dict[str, object]:
    """Return the JSON schema of a value, without its default."""
    stated = dict(msgspec.json.schema(setting.kind))
    if "anyOf" in stated:
        first, _ = stated["anyOf"]
        more = {"enum": [True, False, AUTO]} if first["type"] == "boolean" else {"pattern": f"^{AUTO}$"}
        stated = {**first, "type": [first["type"], "string"], **more}
    if "enum" in stated and "type" not in stated:
        stated = {"type": "string", **stated, "enumDescriptions": list(setting.about.choices)}
    return stated


def outdated(root: Path) -> dict[Path, str]:
    """Return the files of a checkout whose settings differ from their declaration, with their new text."""
    texts = {root / name: rewrite for name, rewrite in PAGES.items()}
    old = {path: path.read_text(encoding="utf-8") for path in texts}
    new = {path: rewrite(old[path]) for path, rewrite in texts.items()}
    return {path: text for path, text in new.items() if text != old[path]}


def _property(setting: Setting) -> dict[str, object]:
    about = setting.about
    described = {**schema_of(setting), "default": default_of(setting), "markdownDescription": f"{about.text} {about.change}"}
    return {**described, "scope": "machine-overridable"} if about.per_machine else described


def _with_settings(text: str, settings: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{settings}\n\n{END}{after}"


def main() -> None:
    """Rewrite what is out of date, or say what is and exit with 1."""
    stale = outdated(Path(__file__).parents[2])
    if "--write" in sys.argv[1:]:
        for path, text in stale.items():
            path.write_text(text, encoding="utf-8")
    elif stale:
        sys.exit(f"{', '.join(map(str, stale))}: out of date. Run: make settings")


if __name__ == "__main__":
    main()
