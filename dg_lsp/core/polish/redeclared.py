"""Find names of JavaScript and TypeScript that an answer declares again, which no engine accepts.

Only what the syntax tells for certain counts: `const`, `let` and `class` in the same block, the parameters of the block's own
function, and imports.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from dg_lsp.core.syntax import Syntax, ancestors
from dg_lsp.core.values import Span


def has_again(tree: Syntax, answer: Span) -> bool:
    """Return whether a `const` or `let` in the answer declares a name that its block has already."""
    if tree.language.name not in ("javascript", "typescript", "tsx") or tree.errors or tree.parts:
        return False
    for declaration in _declarations(tree, answer):
        own = [name for name in _declared(declaration) if tree.span(name).overlaps(answer)]
        block = declaration.parent
        if block is not None and block.type == "export_statement":
            block = block.parent
        if not own or block is None or block.type not in ("program", "statement_block"):
            continue
        others = [name for name in _in_scope(block) if name not in own]
        if {name.text for name in own} & {name.text for name in others}:
            return True
    return False


def _declarations(tree: Syntax, answer: Span) -> Iterator[Node]:
    """Yield the `const` and `let` declarations that touch the answer."""
    around = tree.node_at(answer)
    yield from (node for node in ancestors(around) if node != around and node.type == "lexical_declaration")
    for node in tree.touching(answer):
        if node.type == "lexical_declaration" and tree.span(node).overlaps(answer):
            yield node


def _in_scope(block: Node) -> Iterator[Node]:
    """Yield the names that the statements of a block declare, and the parameters of its function or `catch`."""
    for child in block.named_children:
        inner = child.child_by_field_name("declaration") if child.type == "export_statement" else child
        if inner is not None:
            yield from _declared(inner)
    for field in ("parameters", "parameter"):
        parameters = block.parent.child_by_field_name(field) if block.parent is not None else None
        if parameters is not None:
            each = parameters.named_children if parameters.type == "formal_parameters" else [parameters]
            for parameter in each:
                yield from _bound(parameter)


def _declared(statement: Node) -> Iterator[Node]:
    """Yield the names that a declaration or an import gives a value."""
    if statement.type == "lexical_declaration":
        for declarator in statement.named_children:
            if (name := declarator.child_by_field_name("name")) is not None:
                yield from _bound(name)
    elif statement.type == "class_declaration":
        if (name := statement.child_by_field_name("name")) is not None:
            yield name
    elif statement.type == "import_statement" and not any(child.type == "type" for child in statement.children):
        yield from _imported(statement)


def _imported(node: Node) -> Iterator[Node]:
    for child in node.named_children:
        if child.type == "import_specifier":
            name = child.child_by_field_name("alias") or child.child_by_field_name("name")
            # A type may have the name of a value, and only its case tells it apart.
            if (
                name is not None
                and not any(part.type == "type" for part in child.children)
                and (name.text or b"")[:1].islower()
            ):
                yield name
        elif child.type == "identifier":
            if (child.text or b"")[:1].islower():
                yield child
        elif child.type in ("import_clause", "named_imports", "namespace_import"):
            yield from _imported(child)


def _bound(pattern: Node) -> Iterator[Node]:
    """Yield the names in a parameter or the target of a declaration, without default values and types."""
    if pattern.type in ("identifier", "shorthand_property_identifier_pattern"):
        yield pattern
        return
    fields = ("pattern", "left", "value") if pattern.type != "required_parameter" else ("pattern",)
    inner = next((child for field in fields if (child := pattern.child_by_field_name(field)) is not None), None)
    if inner is not None:
        yield from _bound(inner)
    elif pattern.type in ("object_pattern", "array_pattern", "rest_pattern"):
        for child in pattern.named_children:
            yield from _bound(child)
