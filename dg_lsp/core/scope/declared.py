"""Find what an answer declares or imports though its scope has it already.

Grammars describe declarations alike: their nodes are named `…_declaration`, `…_definition`, `…_item`, `parameter`, `pair`,
and the name is in one of a few fields. What is around them is a scope: a block, a body, a list of parameters, an object. The
languages' table says which kinds of declarations a scope may have twice (`repeats`), and which share no names (`apart`).
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span

# They declare nothing without a body.
_FORWARD = re.compile("(?:class|struct|enum|union)_specifier")
# A case of a switch has the values that it compares with. It is a scope, too.
_CASE = re.compile(
    "^(?:case_(?:statement|item)|switch_(?:block_statement_group|case|default|rule|section)|(?:expression|type|default)_case"
    "|when|in_clause|match_(?:arm|(?:conditional|default)_expression)|default_statement)$"
)
_CONDITION = "guard|when_|attr|;&"
_OTHERS = re.compile(f"^switch_label|^constant_pattern|^default|{_CONDITION}")
# Lists of its values.
_VALUES = re.compile("^(?:expression_list|switch_label|(?:match_|or_|alternative_)?pattern|match_condition_list)$")
# In the grammars' names of nodes.
_DECLARES = re.compile(
    rf"declaration(?!_(?:list|command))|declarator|definition|signature|{_FORWARD.pattern}|_spec(?:_list)?$|(?<!case)_item$"
    r"|parameter$|method_elem$|(?:const|property|keyed)_element$|_variant$|_constant$|enumerator$|enum_(?:case|assignment|member)$"
    r"|pair$|^(?:shorthand_)?field(?:_initializer)?$|import|include|using|use_(?:as|group|list)|namespace_use_clause|by_ref"
    r"|^method$|singleton_method|local_function|array_element_initializer|^call$|(?:object|array|pair|assignment|rest|splat)_pattern"
    r"|^(?:attribute_)?argument$"
    rf"|export_(?:statement|specifier)|statement_list|^resource|jsx_attribute$|{_CASE.pattern}"
)
_NAME = re.compile(
    r"(?<!computed_property_)name|identifier|constant|string|symbol|literal|integer|number|word|designator|operator|template"
    r"|index_expression|expression_list|argument_list|use_wildcard"
)
_WORD = re.compile(rb"[\w\x80-\xff]+")
_QUOTED = re.compile(rb'^(\[?)"(.*)"$', re.DOTALL)
_BODY = re.compile("block|body|compound_statement")
# Lists of names that need no node of their own.
_NAMES = re.compile(
    r"parameters|use_list|function_use_clause|enum_body|^object$|anonymous_object|(?:object|array)_pattern|structured_|field_initializer_list"
)
_FIELDS = (
    *("list", "alias", "declarator", "name", "pattern", "left", "key", "property", "field", "designator", "argument", "path"),
    *("declaration", "definition", "arguments", "body"),
)
# The lists in the head of a function.
_HEAD = re.compile(r"(?<!type_)parameter(?:s|_list)$|function_use_clause")
# Loops whose variable stands in no declaration, and its field.
_LOOPS = {"enhanced_for_statement": "name", "foreach_statement": "left"}
# They may choose between two declarations of one name, as `#[cfg(unix)]` does.
_CONDITIONS = ("decorator", "attribute_item")
# Declarations that may shadow a parameter.
_SHADOWS = re.compile("function|method|class|import|definition|argument")
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

    inner = [filled.node_at(answer)]
    around = filled.ancestors(inner[0])
    for node in inner:
        inner += [child for child in node.named_children if is_own(child)]
    for scope in filter(_is_scope, (*around, *inner[1:])):
        near = _names(scope, [node for node in scope.named_children if is_own(node)])
        keys = [(path, key) for name, path in near if is_own(name) and (key := _key((name, path), filled))]
        own = {key for _, key in keys}
        if len(own) < len(keys):
            return True
        if not own or (start <= scope.start_byte and scope.end_byte <= end):
            continue
        # In a long file, only what has the last word of a name is looked at.
        words = b"|".join(re.escape((_WORD.findall(text) or [b""])[-1]) for text, _, _ in own)
        places = [match.start() for match in re.finditer(words, filled.offsets.source)]
        others = [
            node for node in scope.named_children if bisect_left(places, node.start_byte) < bisect_left(places, node.end_byte)
        ]
        locals_ = {key for path, key in keys if not any(_SHADOWS.search(node.type) for node in path[1:])}
        for found, there in ((_names(scope, others), own), (_around(scope, filled), locals_)):
            if any(not is_own(each[0]) and _key(each, filled) in there for each in found):
                return True
    return False


def _is_scope(node: Node) -> bool:
    return (_CASE.search(node.type) or not _DECLARES.search(node.type)) and (not node.is_error or node.parent is None)


def _names(scope: Node, children: Sequence[Node]) -> Iterator[_Name]:
    """Yield the names that some of a scope's children declare."""
    is_list, loop = _NAMES.search(scope.type), scope.child_by_field_name(_LOOPS.get(scope.type, ""))
    # In an object without nodes for its fields, what follows a name is its value.
    todo: list[_Name] = [(child, (scope,)) for child in children if not is_list or _before(child) != "="]
    while todo:
        node, path = todo.pop()
        if len(path) == 1 and (node == loop or _DECLARES.search(node.type)) and _is_conditional(node):
            continue
        is_set = node.type == "assignment_expression" and "initializer" in path[-1].type
        if is_set or _DECLARES.search(node.type):
            todo += ((child, (*path, node)) for child in _declared(node))
            continue
        where = path[-1].type if len(path) > 1 else "list" if is_list and "type_" not in node.type else ""
        if node == loop or _CASE.search(where) or (where and _NAME.search(node.type)):
            yield node, path


def _declared(node: Node) -> list[Node]:
    """Return the parts of a declaration that hold its names: its fields for them, or else what is in no field."""
    if _FORWARD.match(node.type) and node.child_by_field_name("body") is None:
        return []
    if node.type in ("array_element_initializer", "resource") and node.named_child_count < 2:
        return []
    if node.type.endswith("argument") and node.child_by_field_name("name") is None:
        return []
    if _CASE.search(node.type):
        return _labels(node)
    for field in ("value",) if node.type == "pair_pattern" else _FIELDS:
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


def _labels(case: Node) -> list[Node]:
    """Return the values of a case, or its `default`; none if it has a further condition, or other cases may match after it."""
    fields = map(case.children_by_field_name, ("pattern", "value", "type", "conditional_expressions"))
    values = [*next(filter(None, fields), ())]
    if any(one.end_byte == other.start_byte for one, other in itertools.pairwise(values)):
        return []  # parts of one pattern, as in `*"a"*`
    values += [node for node in case.children if _OTHERS.search(node.type)]
    for value in values:
        if _VALUES.match(value.type):
            values += [node for node in value.children if node.is_named or node.type == "default"]
        if re.search(_CONDITION, value.type) or value.child_by_field_name("condition"):
            return []
    return [value for value in values if not _VALUES.match(value.type) and not _DECLARES.search(value.type)]


def _around(scope: Node, filled: Syntax) -> Iterator[_Name]:
    """Yield the names in the head of the function whose body or list the scope is, and those around that it may not shadow."""
    for inner, outer in itertools.takewhile(lambda pair: not pair[1].is_error, itertools.pairwise(filled.ancestors(scope))):
        is_body = _BODY.search(inner.type) and outer.child_by_field_name("body") == inner
        head = outer if is_body or _HEAD.search(inner.type) else None
        while head is not None:
            lists = [node for node in head.named_children if _HEAD.search(node.type) and node != inner]
            yield from (name for node in lists for name in _names(node, node.named_children))
            head = head.child_by_field_name("declarator")
        if not filled.language.shadows or re.search(filled.language.shadows, f"{inner.type} {outer.type}"):
            return
        if "clause" not in inner.type:
            yield from _names(outer, [node for node in outer.named_children if node.end_byte <= inner.start_byte])


def _before(node: Node) -> str:
    return node.prev_sibling.type if node.prev_sibling else ""


def _is_conditional(node: Node) -> bool:
    before = node.prev_named_sibling
    while before is not None and "comment" in before.type:
        before = before.prev_named_sibling
    return before is not None and before.type in _CONDITIONS


def _text(name: Node, path: Sequence[Node], source: bytes) -> bytes:
    """Return the name, with what else tells it from others: all of an import, all designators, the brackets of a key."""
    declaration, start = path[-1], name.start_byte
    if declaration.type == "import_declaration":
        return b"".join(source[declaration.start_byte : declaration.end_byte].split())
    if "designator" in name.type:
        start = declaration.start_byte
    elif declaration.type == "field" and source[start - 1 : start] == b"[":
        start -= 1
    text = _QUOTED.sub(rb"\1'\2'", source[start : name.end_byte])
    if declaration.type == "namespace_use_clause":
        text = text.rpartition(b"\\")[2]
    elif declaration.type != "use_as_clause":
        lists = ((node, inner) for node, inner in itertools.pairwise(path) if node.type == "scoped_use_list")
        text = b"".join((*(source[node.start_byte : inner.start_byte] for node, inner in lists), text)).removesuffix(b"::self")
    return text if text.startswith(b"'") else b"".join(text.split())


def _key(each: _Name, filled: Syntax) -> tuple[bytes, str, bytes] | None:
    """Return what no two declarations of a scope share; None if this one may be there twice, or is broken."""
    (name, path), language, source = each, filled.language, filled.offsets.source
    heads = (
        node.type.encode() + b" " + source[node.start_byte : min(inner.start_byte, node.start_byte + _HEAD_BYTES)]
        for node, inner in itertools.pairwise((*path[1:], name))
        if node.type != "statement_list"
    )
    kind = " ".join((path[0].type, *(head.decode(errors="replace") for head in heads)))
    text = _text(name, path, source)
    declaration = next(node for node in reversed(path) if "declarator" not in node.type)
    is_repeated = re.search(language.repeats, kind + text.decode(errors="replace")) is not None
    if declaration.has_error or is_repeated or text in (b"_", b"."):
        return None
    apart = repr(re.findall(language.apart, kind)) if language.apart else ""
    apart += "case" if _CASE.search(path[-1].type) else ""
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
