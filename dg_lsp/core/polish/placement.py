"""Find what a grammar accepts in places where no compiler does: `await` outside `async`, a parameter that is there twice.

Only what the syntax alone tells for certain counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tree_sitter import Node

from dg_lsp.core.syntax import Syntax, ancestors

_SCRIPT = ("javascript", "typescript", "tsx")
# What has statements that run when it is called. A static block of a class takes neither `return` nor `await`.
_FUNCTION = re.compile(
    r"\A(?:(?:generator_)?function(?:_declaration|_expression|_item)?|arrow_function|method_(?:definition|declaration)"
    r"|class_static_block|local_function_statement|lambda_expression|anonymous_method_expression|constructor_declaration"
    r"|closure_expression|async_block)\Z"
)
_PARAMETERS = re.compile(r"\A(?:formal_parameters|parameter_list|parameters|method_parameters|block_parameters)\Z")
# The statements that no file of a language has outside of functions.
_NEVER_OUTSIDE = {
    "rust": frozenset({"let_declaration"}),
    **dict.fromkeys(("c", "cpp"), frozenset({"return_statement", "for_statement", "while_statement", "do_statement"})),
}
_GO_ITEMS = frozenset(f"{kind}_declaration" for kind in ("import", "function", "method", "var", "const", "type"))


def is_misplaced(tree: Syntax, node: Node, *, is_file: bool) -> bool:
    """Return whether a statement or an expression is where its language allows none; `is_file` if the text is a whole file."""
    language, parent = tree.language.name, node.parent
    check = _PLACES.get(node.type)
    if language == "go" and is_file and parent is not None and parent.type == "source_file" and node.is_named:
        return node.type not in (*_GO_ITEMS, "package_clause", "comment") or (
            node.type == "import_declaration" and any(_is_go_item(other) for other in _before(node))
        )
    if is_file and parent is not None and parent.parent is None and node.type in _NEVER_OUTSIDE.get(language, ()):
        return True
    return check is not None and not tree.parts and parent is not None and check(language, node, parent)


def is_again(tree: Syntax, node: Node) -> bool:
    """Return whether a node has what it may have only once: a parameter of a name, a constructor, a `default`."""
    if _PARAMETERS.match(node.type):
        # Functions of JavaScript that are not strict may have a parameter twice, and Lua's always.
        outer = node.parent.type if node.parent is not None else ""
        is_lax = tree.language.name == "javascript" and outer.startswith("function")
        is_type = tree.language.name == "rust" and not outer.startswith("function_item")  # of a function, without names
        return not (is_lax or is_type or tree.language.name in ("lua", "python")) and _has_twice(_names(node))
    if node.type == "class_body" and tree.language.name in _SCRIPT:
        constructors = [child for child in node.named_children if child.type == "method_definition"]
        return sum(_name(child) == b"constructor" for child in constructors) > 1
    if node.type == "short_var_declaration":
        return _declares_nothing(node)
    return _HAS_ALTERNATIVES.search(node.type) is not None and _has_twice(
        child.type.encode() for child in node.named_children if child.type in _ONCE or _is_default(child)
    )


_ONCE = frozenset({"switch_default", "default_case", "else_clause"})
_HAS_ALTERNATIVES = re.compile(r"switch|select|if_statement|compound_statement")


def _is_default(node: Node) -> bool:
    """Return whether a `case` of C or a group of Java begins with `default`."""
    first = node.children[0] if node.children else None
    is_case = first is not None and node.type in ("case_statement", "switch_block_statement_group", "switch_rule")
    return is_case and first is not None and first.text == b"default"


def _declares_nothing(node: Node) -> bool:
    """Return whether the statements above a `:=` of Go in its block declare all of its names with `:=` already."""
    left = node.child_by_field_name("left")
    names = {name.text for name in left.named_children} - {b"_"} if left is not None else set()
    if node.parent is None or node.parent.type not in ("block", "statement_list"):
        return False
    for other in _before(node):
        above = other.child_by_field_name("left") if other.type == "short_var_declaration" else None
        names -= {name.text for name in above.named_children} if above is not None else set()
    return not names


def _name(node: Node | None) -> bytes:
    name = node.child_by_field_name("name") if node is not None else None
    return (name.text or b"") if name is not None else b""


def _function(node: Node) -> Node | None:
    """Return the innermost function around the node."""
    return next((other for other in ancestors(node.parent) if _FUNCTION.match(other.type)), None)


def _has(function: Node, word: str) -> bool:
    """Return whether the word is before the parameters of a function."""
    words = (child for child in function.children if child.type in (word, "modifier", "function_modifiers"))
    return function.type.startswith(f"{word}_") or any(word in (child.text or b"").decode().split() for child in words)


def _is_awaited_outside(language: str, node: Node, _parent: Node) -> bool:
    function = _function(node)
    return language in (*_SCRIPT, "csharp", "rust") and function is not None and not _has(function, "async")


def _is_yielded_outside(language: str, node: Node, _parent: Node) -> bool:
    function = _function(node)
    is_generator = function is None or "generator" in function.type or any(child.type == "*" for child in function.children)
    return language in _SCRIPT and not is_generator


def _is_returned_outside(language: str, node: Node, _parent: Node) -> bool:
    function, program = _function(node), list(ancestors(node))[-1]
    if language not in _SCRIPT or function is not None:
        return function is not None and function.type == "class_static_block"
    # A file of CommonJS is the body of a function.
    return any(child.type in ("import_statement", "export_statement") for child in program.named_children)


def _is_inner_import(language: str, _node: Node, parent: Node) -> bool:
    outer = parent.parent.type if parent.parent is not None else ""
    if language in _SCRIPT:
        return parent.type == "statement_block" and re.search("module|ambient", outer) is None
    return language in ("java", "php") and re.search(r"function|method|constructor", outer) is not None


def _is_super_outside(language: str, node: Node, _parent: Node) -> bool:
    called = node.child_by_field_name("function")
    if language not in _SCRIPT or called is None or called.type != "super":
        return False
    around = (other for other in ancestors(node.parent) if _FUNCTION.match(other.type) and other.type != "arrow_function")
    function = next(around, None)
    owner = function.parent.parent if function is not None and function.parent is not None else None
    is_derived = owner is not None and any(child.type == "class_heritage" for child in owner.children)
    return function is None or _name(function).strip(b"'\"") != b"constructor" or not is_derived


def _is_awaiting_loop(language: str, node: Node, parent: Node) -> bool:
    return any(child.type == "await" for child in node.children) and _is_awaited_outside(language, node, parent)


def _is_without_body(language: str, node: Node, parent: Node) -> bool:
    """Return whether a method of a class has no body and no modifier that says so, or has both."""
    outer = parent.parent.type if parent.parent is not None else ""
    words = {word for child in node.children if "modifier" in child.type for word in (child.text or b"").split()}
    if language not in ("java", "csharp") or outer != "class_declaration":
        return False
    is_whole = node.child_by_field_name("body") is not None or any(child.type.startswith("arrow") for child in node.children)
    return b"abstract" in words if is_whole else not words & {b"abstract", b"native", b"extern", b"partial"}


def _is_other_constructor(language: str, node: Node, parent: Node) -> bool:
    """Return whether a constructor has another name than its class: a method without a type."""
    owner = next((other for other in ancestors(parent) if _name(other)), None)
    is_class = owner is not None and owner.type.endswith("_declaration")
    # C# has blocks that are called `extension`.
    return language in ("java", "csharp") and is_class and _name(node) not in (_name(owner), b"extension")


# Returns whether a node of a kind is misplaced, of its language, itself and its parent.
_PLACES: dict[str, Callable[[str, Node, Node], bool]] = {
    "await_expression": _is_awaited_outside,
    "yield_expression": _is_yielded_outside,
    "return_statement": _is_returned_outside,
    "call_expression": _is_super_outside,
    "for_in_statement": _is_awaiting_loop,
    "method_declaration": _is_without_body,
    "constructor_declaration": _is_other_constructor,
    **dict.fromkeys(
        ("import_statement", "export_statement", "import_declaration", "namespace_use_declaration"), _is_inner_import
    ),
}


def _is_go_item(node: Node) -> bool:
    return node.type in _GO_ITEMS and node.type != "import_declaration"


def _before(node: Node) -> Iterator[Node]:
    while (before := node.prev_named_sibling) is not None:
        yield before
        node = before


def _names(parameters: Node) -> Iterator[bytes]:
    """Yield the names of parameters, without those that nothing reads."""
    for parameter in parameters.named_children:
        given = [parameter] if parameter.type == "identifier" else []
        for field in ("name", "pattern", "declarator"):
            given += parameter.children_by_field_name(field)
        for name in given:
            while (inner := name.child_by_field_name("declarator")) is not None:
                name = inner
            text = name.text or b""
            if re.fullmatch(rb"\$?[A-Za-z]\w*", text) and name.type != "this":
                yield text


def _has_twice(names: Iterator[bytes]) -> bool:
    every = list(names)
    return len(set(every)) < len(every)
