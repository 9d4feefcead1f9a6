"""Find what an answer declares or imports though its scope has it already.

Grammars describe declarations alike: their nodes are named `…_declaration`, `…_definition`, `…_item`, `parameter`, `pair`,
and the name is in one of a few fields. What is around them is a scope: a block, a body, a list of parameters, an object. The
languages' table says which kinds of declarations a scope may have twice (`repeats`), and which share no names (`apart`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tree_sitter import Node

from dg_lsp.core.syntax import Syntax, ancestors
from dg_lsp.core.values import Span

# They declare nothing without a body.
_FORWARD = re.compile("(?:class|struct|enum|union)_specifier")
# In the grammars' names of nodes.
_DECLARES = re.compile(
    rf"declaration(?!_(?:list|command))|declarator|definition|signature|{_FORWARD.pattern}|_spec(?:_list)?$|(?<!case)_item$"
    r"|parameter$|_elem$|(?:const|property|keyed)_element$|_variant$|_constant$|enumerator$|enum_(?:case|assignment|member)$"
    r"|pair$|^field(?:_initializer)?$|import|include|using|use_(?:as|group|clause)|export_(?:statement|specifier)|statement_list"
    r"|^method$|singleton_method|local_function|array_element_initializer|^call$|(?:object|array|assignment|rest|splat)_pattern"
)
_NAME = re.compile(
    r"(?<!computed_property_)name|identifier|constant|string|symbol|literal|integer|number|word|designator|operator|template"
    r"|index_expression|expression_list|argument_list|use_list|use_wildcard"
)
_WORD = re.compile(rb"[\w\x80-\xff]+")
_BODY = re.compile("block|body|compound_statement")
# Lists of names that need no node of their own.
_NAMES = re.compile(r"parameters|use_list|enum_body|^object$|(?:object|array)_pattern|structured_|field_initializer_list")
_FIELDS = (
    *("alias", "declarator", "name", "pattern", "left", "key", "property", "field", "designator", "argument", "path"),
    *("declaration", "definition", "arguments", "body"),
)
# They may choose between two declarations of one name, as `#[cfg(unix)]` does.
_CONDITIONS = ("decorator", "attribute_item")
# Declarations that may shadow a parameter.
_SHADOWS = re.compile("function|method|class|import|definition")
_HEAD_BYTES = 200  # of what is before a name in a declaration, such as `static`

# A name, and the nodes from its scope to it.
_Name = tuple[Node, tuple[Node, ...]]


def declares_again(filled: Syntax, answer: Span) -> bool:
    """Return whether the answer declares or imports a name that its own scope has elsewhere too."""
    if not filled.language.repeats:
        return False
    start, end = filled.offsets.to_byte(answer.start), filled.offsets.to_byte(answer.end)

    def is_own(node: Node) -> bool:
        return node.start_byte < end and start < node.end_byte

    edges = [filled.node_at(Span(at, at + 1)) for at in (answer.start, max(answer.start, answer.end - 1))]
    for scope in {node.id: node for edge in edges for node in ancestors(edge) if _is_scope(node)}.values():
        near = _names(scope, [node for node in scope.named_children if is_own(node)])
        keys = [(each, _key(each, filled)) for each in near if is_own(each[0])]
        own = {key for _, key in keys if key}
        if not own:
            continue
        # In a long file, only what has the last word of a name is looked at.
        words = b"|".join(re.escape((_WORD.findall(text) or [b""])[-1]) for text, _, _ in own)
        places = [match.start() for match in re.finditer(words, filled.offsets.source)]
        others = [
            node for node in scope.named_children if bisect_left(places, node.start_byte) < bisect_left(places, node.end_byte)
        ]
        locals_ = {key for (_, path), key in keys if key and not any(_SHADOWS.search(node.type) for node in path)}
        for found, there in ((_names(scope, others), own), (_parameters(scope), locals_)):
            if any(not is_own(each[0]) and _key(each, filled) in there for each in found):
                return True
    return False


def _is_scope(node: Node) -> bool:
    return not _DECLARES.search(node.type) and (not node.is_error or node.parent is None)


def _names(scope: Node, children: Sequence[Node]) -> Iterator[_Name]:
    """Yield the names that some of a scope's children declare."""
    todo: list[_Name] = [(child, (scope,)) for child in children if not _is_conditional(child)]
    while todo:
        node, path = todo.pop()
        if _DECLARES.search(node.type):
            todo += ((child, (*path, node)) for child in _declared(node))
        elif _NAME.search(node.type) and (len(path) > 1 or _NAMES.search(scope.type)):
            yield node, path


def _declared(node: Node) -> list[Node]:
    """Return the parts of a declaration that hold its names: its fields for them, or else what is in no field."""
    if _FORWARD.match(node.type) and node.child_by_field_name("body") is None:
        return []
    if node.type == "array_element_initializer" and node.named_child_count < 2:
        return []
    for field in _FIELDS:
        if found := node.children_by_field_name(field):
            return found[-1:] if field == "designator" else found
    free, cursor = list[Node](), node.walk()
    is_there = cursor.goto_first_child()
    while is_there:
        if cursor.node is not None and cursor.node.is_named and cursor.field_name is None:
            free.append(cursor.node)
        is_there = cursor.goto_next_sibling()
    # What follows a name is its value.
    return [child for child in free if child == free[0] or _DECLARES.search(child.type) or _NAMES.search(node.type)]


def _parameters(scope: Node) -> Iterator[_Name]:
    """Yield the parameters of the function whose body the scope is."""
    head, parameters = scope.parent, None
    if head is not None and _BODY.search(scope.type) and head.child_by_field_name("body") == scope:
        while head is not None and parameters is None:
            parameters, head = head.child_by_field_name("parameters"), head.child_by_field_name("declarator")
    if parameters is not None:
        yield from _names(parameters, parameters.named_children)


def _is_conditional(node: Node) -> bool:
    before = node.prev_named_sibling
    while before is not None and "comment" in before.type:
        before = before.prev_named_sibling
    return before is not None and before.type in _CONDITIONS


def _text(name: Node, declaration: Node, source: bytes) -> bytes:
    """Return the name, with what else tells it from others: all of an import, all designators, the brackets of a key."""
    start = name.start_byte
    if declaration.type == "import_declaration":
        return b"".join(source[declaration.start_byte : declaration.end_byte].split())
    if "designator" in name.type:
        start = declaration.start_byte
    elif declaration.type == "field" and source[start - 1 : start] == b"[":
        start -= 1
    text = source[start : name.end_byte].replace(b'"', b"'")
    return text if text.startswith(b"'") else b"".join(text.split())


def _key(each: _Name, filled: Syntax) -> tuple[bytes, str, bytes] | None:
    """Return what no two declarations of a scope share; None if this one may be there twice, or is broken."""
    (name, path), language, source = each, filled.language, filled.offsets.source
    heads = (
        node.type.encode() + b" " + source[node.start_byte : min(inner.start_byte, node.start_byte + _HEAD_BYTES)]
        for node, inner in pairwise((*path[1:], name))
        if node.type != "statement_list"
    )
    kind = " ".join((path[0].type, *(head.decode(errors="replace") for head in heads)))
    text = _text(name, path[-1], source)
    declaration = next(node for node in reversed(path) if "declarator" not in node.type)
    is_repeated = re.search(language.repeats, kind + text.decode(errors="replace")) is not None
    if declaration.has_error or is_repeated or text in (b"_", b"."):
        return None
    apart = repr(re.findall(language.apart, kind)) if language.apart else ""
    return text, apart, _signature(name, path[-1], source) if language.overloads else b""


def _signature(name: Node, function: Node, source: bytes) -> bytes:
    """Return the types of a function's parameters, as the text between its name and its body without their names."""
    parameters, body = (function.child_by_field_name(field) for field in ("parameters", "body"))
    if parameters is None:
        # `A`, `A<T>` and `A<T, U>` are three classes.
        behind = source[name.end_byte : name.end_byte + _HEAD_BYTES]
        return b"<%d" % behind.partition(b">")[0].count(b",") if behind.startswith(b"<") else b""
    at, parts = name.end_byte, list[bytes]()
    end = function.end_byte if body is None else body.start_byte
    names = (each for each, _ in _names(parameters, parameters.named_children))
    for node in sorted(names, key=lambda node: node.start_byte):
        parts.append(source[at : node.start_byte])
        at = node.end_byte
    return b"".join(b"".join((*parts, source[at:end])).split())
