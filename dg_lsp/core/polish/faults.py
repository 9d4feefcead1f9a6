"""Find what a grammar accepts and no compiler does: tags that do not match, words of the language as names, and the like.

Only the nodes near an answer are looked at. A fault that the document has without the answer is not the answer's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from tree_sitter import Node

from dg_lsp.core import languages
from dg_lsp.core.syntax import Syntax, ancestors
from dg_lsp.core.values import Span

# Words that are reserved in each language whose grammar has them as a keyword.
_RESERVED = re.compile(
    "alias|alignof|await|break|case|catch|class|const|continue|do|dyn|else|enum|extends|finally|fn|for|foreach|if|impl|import|in"
    "|instanceof|let|match|mod|module|new|ref|return|sizeof|struct|switch|throw|try|typeof|undef|unless|until|var|void"
    "|when|while"
)
# Words of these that a language allows as names.
_ALLOWED = {
    "javascript": {"await", "let", "module"},
    "typescript": {"await", "let", "module"},
    "tsx": {"await", "let", "module"},
    "java": {"module", "when"},
    "csharp": {"await", "var", "when", "alias", "match"},
    "cpp": {"import", "module"},
    "php": {"enum", "match", "in"},
    "rust": {"new", "var"},
    "ruby": {"new"},
}
_NAMES = frozenset({"identifier", "type_identifier", "name", "namespace_identifier"})
_LEAVES = re.compile(r"\A(?:break|continue)_(?:statement|expression)\Z|\Acase_statement\Z")
_LOOPS = re.compile(
    r"\A(?:for|while|do|loop|repeat|enhanced_for|foreach|switch|select|expression_switch|type_switch|case|labeled)"
)
_FUNCTION = re.compile(r"function|lambda|closure|method|func_literal")
_HEREDOC = re.compile(r"<<<?[-~]?\s*[\"'`]?(\w+)")
# The expressions that are a statement in Java, C# and Go.
_ACTS = re.compile(r"assignment|invocation|creation|update|call|await|conditional_access|unary|paren|switch|throw")


def count(tree: Syntax, span: Span, *, is_file: bool) -> int:
    """Return the number of faults in the nodes that touch the span, and around it.

    With `is_file`, the text is a whole file, so that a `break` without a loop is one.
    """
    nodes = {node.id: node for node in (*_touching(tree, span), *ancestors(tree.node_at(span)))}
    return sum(_is_fault(tree, node, is_file and not tree.parts) for node in nodes.values())


def _touching(tree: Syntax, span: Span) -> Iterator[Node]:
    """Yield the nodes below the one around the span that touch it."""
    start, end = tree.offsets.to_byte(max(0, span.start - 1)), tree.offsets.to_byte(span.end + 1)
    todo = [tree.node_at(span)]
    while todo:
        node = todo.pop()
        if node.end_byte >= start and node.start_byte <= end:
            yield node
            todo += node.children


def _is_fault(tree: Syntax, node: Node, is_file: bool) -> bool:
    kind, language, parent = node.type, tree.language.name, node.parent.type if node.parent is not None else ""
    if kind in _NAMES:
        return _is_reserved(node, (node.text or b"").decode("utf-8", "replace"), language)
    if kind == "jsx_element":
        tags = [child.child_by_field_name("name") for child in node.children if child.type.startswith("jsx_")]
        names = [tag.text if tag is not None else b"" for tag in (tags[0], tags[-1])] if tags else []
        return len(set(names)) > 1
    if kind in ("heredoc_beginning", "heredoc_start"):
        span = tree.span(node)
        word = _HEREDOC.match(tree.text, span.start)
        return word is not None and re.search(rf"^[ \t]*{word[1]}\b", tree.text[span.end :], re.MULTILINE) is None
    if kind == "expression_statement" and language in ("java", "csharp", "go"):
        return (
            parent != "switch_rule"
            and node.named_child_count == 1
            and not node.has_error
            and not _ACTS.search(node.named_children[0].type)
        )
    if kind == "object_creation_expression" and language == "csharp":
        # `new A<B>(c)` may be taken for two comparisons.
        return parent not in ("binary_expression", "ERROR") and not any(
            re.search("list|initializer", child.type) for child in node.children
        )
    if kind == "lexical_declaration" and node.children[0].type == "const":
        is_typed = node.parent is not None and node.parent.type == "ambient_declaration"
        return not is_typed and any(
            child.type == "variable_declarator" and child.child_by_field_name("value") is None for child in node.children
        )
    if is_file and _LEAVES.match(kind) and language not in ("ruby", "bash"):
        around = list(takewhile(lambda other: not _FUNCTION.search(other.type), ancestors(node.parent)))
        return not any(_LOOPS.match(other.type) for other in around) and not any(
            child.type == "label" for child in node.children
        )
    return False


def _is_reserved(node: Node, text: str, language: str) -> bool:
    """Return whether a name is a word of the language, in a place where only a name can be."""
    row = languages.row(language)
    if not _RESERVED.fullmatch(text) or text in _ALLOWED.get(language, ()) or text not in languages.words(row):
        return False
    before = node.prev_sibling
    is_member = before is not None and before.type in (".", "?.", "&.", "->", "?->", "::", ":", "@")
    parent = node.parent.type if node.parent is not None else ""
    return not (
        is_member
        or node.is_missing
        or re.search(r"member|scoped|class_constant|method|argument_name|pair|variable_name|token_|macro", parent)
    )
