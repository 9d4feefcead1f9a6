"""Find names that a file uses and never binds, in any language whose syntax tells uses from bindings.

If every occurrence of a name in a file is a use, nothing in that file binds it. The method is rough but safe: an
occurrence that is not certainly a use counts as a binding. `uses.toml` says what is a use.
"""

from __future__ import annotations

import builtins
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Literal

from tree_sitter import Node

from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span

# A name with more occurrences counts as bound: it probably is, and checking each one takes too long.
MAX_PLACES = 40


def unbound_names(filled: Syntax, answers: Sequence[Span]) -> frozenset[str]:
    """Return the names that the answers use and that nothing in the file binds."""
    language = filled.language.name
    if language not in _USES:
        return frozenset()
    text = filled.text
    # An answer may complete the name before it.
    spans = [Span(word_start(text, answer.start), word_end(text, answer.end)) for answer in answers]
    names = {match[0] for span in spans for match in _WORD.finditer(text, span.start, span.end)}
    return frozenset(name for name in names - _GIVEN[language] if _is_only_used(name, filled, spans))


def word_start(text: str, offset: int) -> int:
    """Return the start of the word around or before the offset, or the offset if there is none."""
    while offset > 0 and (text[offset - 1].isalnum() or text[offset - 1] in "_$"):
        offset -= 1
    return offset


def word_end(text: str, offset: int) -> int:
    """Return the end of the word around or after the offset, or the offset if there is none."""
    while offset < len(text) and (text[offset].isalnum() or text[offset] in "_$"):
        offset += 1
    return offset


def _is_only_used(name: str, filled: Syntax, answers: Sequence[Span]) -> bool:
    """Return whether every occurrence of the name in the file is a use, and all of them are in answers."""
    n_uses = 0
    places = re.finditer(rf"(?<![\w$]){re.escape(name)}(?![\w$])", filled.text)
    for number, match in enumerate(places):
        span = Span(*match.span())
        role = _role(filled.node_at(span), span, filled) if number < MAX_PLACES else "binds"
        if role == "binds":
            return False
        if role == "uses":
            if not any(answer.start <= span.start and span.end <= answer.end for answer in answers):
                # The name was unbound before the answer.
                return False
            n_uses += 1
    return n_uses > 0


def _role(node: Node, span: Span, filled: Syntax) -> Literal["uses", "binds", "nothing"]:
    """Return whether the occurrence uses or binds the name; in doubt "binds"."""
    facts, around = filled.facts_near(span), filled.ancestors(node)
    if any(facts.has("comment", each) for each in around):
        return "nothing"
    if any(each.is_error for each in around):
        return "binds"
    if node.type in _MEMBERS:
        return "nothing"
    if node.type not in ("identifier", "shorthand_property_identifier"):
        is_text = any(facts.has("string", each) for each in around)
        # A Go import path ends with the name that it binds.
        return "nothing" if is_text and not any("import" in each.type for each in around) else "binds"
    child, parent = node, node.parent
    while parent is not None and parent.type == "expression_list":
        child, parent = parent, parent.parent
    if parent is None:
        return "binds"
    idx = next((idx for idx, each in enumerate(parent.children) if each.id == child.id), -1)
    field = parent.field_name_for_child(idx) if idx >= 0 else None
    if (parent.type, field) in _MEMBER_FIELDS:
        return "nothing"
    fields = _USES[filled.language.name].get(parent.type)
    return "uses" if fields is not None and (not fields or field in fields) else "binds"


_WORD = re.compile(r"(?<![\w$])[^\W\d][\w$]*")
# Names that are looked up in a value, not in a scope.
_MEMBERS = frozenset({"property_identifier", "private_property_identifier", "field_identifier", "statement_identifier"})
_MEMBER_FIELDS = frozenset({("attribute", "attribute"), ("keyword_argument", "name")})
# For each kind of node, the fields in which a name is a use; no field means all fields.
_Uses = Mapping[str, Sequence[str]]


def _table() -> tuple[dict[str, _Uses], dict[str, frozenset[str]]]:
    """Return the uses and the given names of each language."""
    rows = tomllib.loads((resources.files("dg_lsp.core.scope") / "uses.toml").read_text(encoding="utf-8")).values()
    uses = {language: row["uses"] for row in rows for language in row["languages"]}
    given = {language: frozenset(row["given"].split()) for row in rows for language in row["languages"]}
    return uses, given | {"python": given["python"] | set(dir(builtins))}


_USES, _GIVEN = _table()
