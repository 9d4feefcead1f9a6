"""Recognise answers that are valid code and can hardly be meant: endless recursion, and a value that is overwritten unread.

Such an answer is kept, because this is judged without types. Front ends rank it below those that may be meant, and show it
only on request. Nodes are recognised by their fields and by words in their kinds that several grammars share, such as
`arguments` and `declaration`; a check that needs more names its languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from tree_sitter import Node

from dg_lsp.core.polish.checks import Whole
from dg_lsp.core.syntax import Owner, Syntax, ancestors
from dg_lsp.core.values import Span


def reason(whole: Whole) -> str:
    """Return why an answer can hardly be meant, as the end of a sentence that begins with "it"; "" if all may be."""
    for span, _ in whole.answers():
        if _only_calls_itself(whole.after, span):
            return "only calls its own function again"
        if _overwrites(whole.after, span):
            return "overwrites a value that nothing has read"
    return ""


# --- A function that only calls itself

_ITSELF = ("self", "Self", "this", "$this", "cls", "static")
# The parts of these nodes run whenever the nodes run. Of a short-circuit operator, only the first part does.
_STRAIGHT = re.compile(
    r"return|yield|statement\Z|await|parenthes|try_expression|call|invocation|argument|command|member|attribute|selector|field"
    r"|binary|boolean|unary|not_op|comparison|expression_list|array|tuple|cast|subscript|creation|new_expression|assignment|splat|\Alist\Z"
    r"|declarat|\Aobject\Z|dictionary|pair|hash|spread|template_s|interpolat|\Astring\Z|jsx_(?:element|self|opening|expr|fragment)|raise|throw|as_expr|non_null|reference_expr"
)
_CONDITIONAL = re.compile(
    r"(?:\A|_)(?:if|while|for|foreach|switch|try(?!_expression)|do|unless|until|match|case|select|repeat|with)_|conditional|ternary"
    r"|comprehension|generator_expression"
)
# What of them runs in any case.
_FIRST = ("condition", "right", "value", "subject", "initializer")
_SHORT_CIRCUIT = frozenset({"&&", "||", "??", "and", "or", "||=", "&&=", "??="})
# The functions and operators of Python that call a special method, by its name.
_CALLED_BY = frozenset({"len", "str", "repr", "iter", "next", "bool", "hash", "int", "float", "bytes", "abs", "reversed"})
_OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "add": "+", "sub": "-", "mul": "*"}
# Functions whose body may be an expression, and what may hold a function as its value.
_HAS_EXPRESSION = re.compile(r"\A(?:arrow_function|lambda|arrow_expression_clause|method|singleton_method)\Z")
_PROPERTY = re.compile(r"@(?:\w+\.)*(?:cached_)?property\Z")
_HOLDS = re.compile(r"declarator|assignment|\Apair\Z|\Afield\Z|field_definition")


@dataclass(frozen=True, slots=True)
class _Function:
    """A function with its name, the offset where its body begins, its statements, and the function or class around it."""

    node: Node
    name: str
    start: int
    statements: tuple[Node, ...]
    around: Owner | None


def _only_calls_itself(tree: Syntax, answer: Span) -> bool:
    """Return whether the answer is in the first statement of a function, which calls that function without a condition."""
    function = _function_around(tree, answer)
    if function is None or not function.statements or not tree.span(function.statements[0]).overlaps(answer):
        return False
    statement, names = function.statements[0], _names(tree, function)
    if _sets_itself(tree, function) or _is_its_operator(tree, function):
        return True
    value = statement
    while re.search(r"return|statement|await|expression_list", value.type) and value.named_child_count == 1:
        value = value.named_children[0]
    is_property = _is_getter(tree, function.node)
    is_read = (tree.language.has_getters or is_property) and value.child_by_field_name("arguments") is None
    if is_read and len(function.statements) == 1 and _plain(_text(tree, value)) in names:
        return True
    # Behind a receiver, the name may be a member of another object, and without one, a type. So only `this.X` counts.
    own = {name for name in names if name.partition(".")[0] in _ITSELF and "." in name}
    if is_property and any(_plain(_text(tree, node)) in own and not _is_target(node) for node in _straight(statement)):
        return True
    return any(_callee(tree, node) in names and _is_same(tree, function.node, node) for node in _straight(statement))


def _is_getter(tree: Syntax, node: Node) -> bool:
    """Return whether reading a member runs the function."""
    words = {child.type for child in node.children}
    outer = node.parent.children if node.parent is not None and node.parent.type == "decorated_definition" else []
    is_decorated = any(_PROPERTY.match(_text(tree, child)) for child in outer if child.type == "decorator")
    is_accessor = node.type == "method_definition" and "get" in words
    return node.type in ("property_declaration", "accessor_declaration") or is_accessor or is_decorated


def _is_target(node: Node) -> bool:
    """Return whether the node is what an `=` assigns to."""
    parent = node.parent
    return (
        parent is not None and parent.child_by_field_name("left") == node and any(part.type == "=" for part in parent.children)
    )


def _sets_itself(tree: Syntax, function: _Function) -> bool:
    """Return whether the first statement of a setter assigns to the property that it sets."""
    assignment, node, name = function.statements[0], function.node, function.name
    while "statement" in assignment.type and assignment.named_child_count == 1:
        assignment = assignment.named_children[0]
    target = assignment.child_by_field_name("left")
    if target is None or not any(child.type == "=" for child in assignment.children):
        return False
    words = {child.type for child in node.children}
    receivers: tuple[str, ...] = ("this.",)
    if tree.language.name == "ruby" and re.fullmatch(r"\w+=", name):
        name, receivers = name[:-1], ("self.",)
    elif tree.language.name == "csharp" and words & {"set", "init"}:
        property_ = node.parent.parent if node.parent is not None else None
        # With an interface before its name, the property is another one.
        if property_ is None or any(child.type == "explicit_interface_specifier" for child in property_.children):
            return False
        name, receivers = _own_name(tree, property_), ("", "this.")
    elif tree.language.name == "python" and node.parent is not None and node.parent.type == "decorated_definition":
        if not any(_text(tree, child) == f"@{name}.setter" for child in node.parent.children):
            return False
        receivers = tuple(f"{parameter}." for parameter in _parameters(tree, node)[:1])
    elif not (node.type == "method_definition" and "set" in words):
        return False
    return name != "" and _text(tree, target) in [f"{receiver}{name}" for receiver in receivers]


def _is_its_operator(tree: Syntax, function: _Function) -> bool:
    """Return whether the first statement of a special method of Python has what calls it: `len(self)` in `__len__`."""
    name = function.name.removeprefix("__").removesuffix("__")
    is_special = tree.language.name == "python" and function.name == f"__{name}__"
    if not is_special or function.around is None or function.around.kind != "class":
        return False
    itself, other, *_ = [*_parameters(tree, function.node), "", ""]
    if name in _CALLED_BY:
        call = f"{name}({itself})"
    elif name in _OPERATORS and other:
        call = f"{itself} {_OPERATORS[name]} {other}"
    else:
        return False
    return any(re.sub(r"\s+", " ", _text(tree, node)) == call for node in _straight(function.statements[0]))


def _parameters(tree: Syntax, function: Node) -> list[str]:
    """Return the names of a function's parameters in Python."""
    parameters = function.child_by_field_name("parameters")
    return [re.split(r"\W", _text(tree, node))[0] for node in parameters.named_children] if parameters is not None else []


def _function_around(tree: Syntax, answer: Span) -> _Function | None:
    """Return the innermost function around the answer, with a body of statements or an expression."""
    facts = tree.facts_near(answer)
    owners = [owner for owner in facts.owners if owner.inside.holds(answer)]
    for node in ancestors(tree.node_at(answer)):
        if owners and node == owners[-1].node:
            break
        body = node.named_children[-1] if node.named_children and _HAS_EXPRESSION.match(node.type) else None
        if body is not None and not _BLOCK.search(body.type) and tree.span(body).holds(answer):
            named = node.parent if node.type == "arrow_expression_clause" and node.parent is not None else node
            around = next((owner for owner in reversed(owners) if owner.kind != "closure"), None)
            return _Function(named, _own_name(tree, named), tree.span(body).start, (body,), around)
    holders = [owner for owner in owners if owner.kind != "closure" or _holder(owner.node)]
    accessor = next((node for node in ancestors(tree.node_at(answer)) if node.type == "accessor_declaration"), None)
    if not holders or (holders[-1].kind == "class" and accessor is None):
        return None
    function, around = holders[-1], holders[-2] if len(holders) > 1 else None
    if accessor is not None and (body := accessor.child_by_field_name("body")) is not None:
        around = function if function.kind == "class" else around
        return _Function(accessor, _own_name(tree, accessor), tree.span(body).start, tuple(body.named_children), around)
    statements = tuple(node for node in function.items if "comment" not in node.type and not facts.has("docstring", node))
    name = function.name if function.name else _own_name(tree, function.node)
    return _Function(function.node, name, function.inside.start, statements, around)


def _own_name(tree: Syntax, node: Node) -> str:
    """Return the name of a function or property, or of what it is assigned to."""
    if node.type == "accessor_declaration":
        first = node.children[0].text if node.children else b""
        owner = node.parent.parent if node.parent is not None and first == b"get" else None
        return _own_name(tree, owner) if owner is not None else ""
    if (name := node.child_by_field_name("name")) is not None:
        return _text(tree, name)
    holder = _holder(node)
    fields = ("name", "left", "key", "property", "pattern")
    target = next((child for field in fields if holder and (child := holder.child_by_field_name(field))), None)
    return _text(tree, target) if target is not None else ""


def _holder(node: Node) -> Node | None:
    """Return what has the function as its value: an assignment, or a member of an object or a class."""
    return node.parent if node.parent is not None and _HOLDS.search(node.parent.type) else None


def _names(tree: Syntax, function: _Function) -> set[str]:
    """Return what the function's own body can call it."""
    node, around = function.node, function.around
    whole_name = _plain(re.split(r"[(\s]", function.name.lstrip("*& "))[0])
    name = whole_name.rpartition(".")[2]
    signature = tree.text[tree.span(node).start : function.start]
    # By a parameter. A function that is assigned has no name of its own in its signature.
    is_named = node.child_by_field_name("name") is not None or whole_name != name or _holder(node) is None
    is_hidden = len(re.findall(rf"(?<!\w){re.escape(name)}(?!\w)", signature)) > is_named
    bare = set() if is_hidden or not name else {name}
    receiver = node.child_by_field_name("receiver")
    if receiver is not None:  # a method of Go
        return {f"{variable}.{name}" for variable in re.findall(r"\w+", _text(tree, receiver))[:1]}
    holder = node if node.type in ("field", "method_definition") else _holder(node)
    if holder is not None and holder.parent is not None and re.search("object|table_constructor", holder.parent.type):
        outer_name = _own_name(tree, holder.parent)
        own = {f"{outer_name}.{name}"} if outer_name else set()
        return own if node.type == "arrow_function" else own | {f"{item}.{name}" for item in ("this", "self")}
    outer = next((node for node in ancestors(node) if node.type in ("impl_item", "trait_item")), None)
    is_member = "method" in node.type or re.search("field|property|accessor", f"{node.type} {holder.type if holder else ''}")
    is_method = bool(is_member) or whole_name != name or (around is not None and around.kind == "class")
    if not is_method and (outer is None or around is not None):
        return bare
    if any(child.type == "explicit_interface_specifier" for child in node.children):
        return set()  # C# has another method of that name for it
    # The call may mean another implementation of a trait, or a method of the type itself.
    trait = outer.child_by_field_name("trait") if outer is not None else None
    if trait is not None and (trait.type == "generic_type" or len(re.findall(rf"\bfn\s+{name}\b", tree.text)) > 1):
        return set()
    own_type = outer.child_by_field_name("type") if outer is not None else None
    objects = [*_ITSELF, *([around.name] if around is not None else []), *([_text(tree, own_type)] if own_type else [])]
    return {f"{item}.{name}" for item in objects} | {whole_name} - {name} | (bare if tree.language.bare_methods else set())


def _straight(statement: Node) -> Iterator[Node]:
    """Yield the statement and the nodes in it that run whenever it runs."""
    pending = [statement]
    while pending:
        node = pending.pop()
        yield node
        if _STRAIGHT.search(node.type) and not _CONDITIONAL.search(node.type):
            is_short_circuit = any(child.type in _SHORT_CIRCUIT for child in node.children)
            pending += node.named_children[: 1 if is_short_circuit else None]
        elif _CONDITIONAL.search(node.type):
            parts = node.named_children if "comprehension" in node.type or "generator" in node.type else [node]
            first = next((part for part in parts if part.type == "for_in_clause"), parts[0])
            pending += [child for field in _FIRST if (child := first.child_by_field_name(field)) is not None]


def _callee(tree: Syntax, node: Node) -> str:
    """Return what a call or an element of JSX calls; "" if the node is neither."""
    if node.type in ("jsx_self_closing_element", "jsx_opening_element"):
        name = node.child_by_field_name("name")
        return _text(tree, name) if name is not None else ""
    if (arguments := node.child_by_field_name("arguments")) is not None:
        called = _plain(tree.text[tree.span(node).start : tree.span(arguments).start]).lstrip(".")
        # In C#, another number of type parameters makes another method.
        return called if tree.language.name == "csharp" else re.sub(r"[?.]*(?:<[^<>]*>)?[?.]*\Z", "", called)
    name = node.child_by_field_name("name") if node.type == "command" else None
    return _text(tree, name) if name is not None else ""


def _is_same(tree: Syntax, function: Node, call: Node) -> bool:
    """Return whether the call means this function; where a language has overloads, only the same arguments say so."""
    if not tree.language.has_overloads:
        return True
    holder: Node | None = function
    while holder is not None and holder.child_by_field_name("parameters") is None:
        holder = holder.child_by_field_name("declarator")
    parameters = holder.child_by_field_name("parameters") if holder is not None else None
    arguments = call.child_by_field_name("arguments")
    if parameters is None or arguments is None:
        return False
    # C# prefers every method without `override` in the class to one with it.
    is_override = any(child.type == "modifier" and child.text == b"override" for child in function.children)
    name = function.child_by_field_name("name")
    if is_override and name is not None and function.parent is not None:
        others = (child.child_by_field_name("name") for child in function.parent.named_children if child != function)
        if any(other is not None and other.text == name.text for other in others):
            return False
    names = [("", *re.findall(r"\w+", _text(tree, node).partition("=")[0]))[-1] for node in parameters.named_children]
    return names == [_text(tree, node) for node in arguments.named_children]


def _plain(name: str) -> str:
    """Return a name with points between its parts, whatever the language has there."""
    return re.sub(r"\s", "", re.sub(r"::|->|:", ".", name))


# --- A value that is overwritten before it was read

MAX_PLACES = 100  # a name that is in more places is not judged
_ASSIGNS = re.compile(r"(?<![=!<>~+*/%|&^?-])=(?![=>~])")
_NAME = re.compile(r"(?:[\w$@]+(?:\.|->))?@{0,2}[^\W\d]\w*")
_ASSIGN_TOKENS = frozenset(f"{sign}=" for sign in ("", ":", *"+-*/%|&^.", "//", "**", "<<", ">>", "||", "&&", "??", ".."))
_CONSTANT = re.compile(
    r"""(?:[-+]?\d[\w.]*|(?i:true|false|none|null|nil|nullptr|undefined|nan)|void 0|default(?:\([\w.<>]*\))?"""
    r"""|[+bBfFrRuU@]*(["'`])(?:(?!\1)[^$#{\\])*\1(?:\.(?:to_string|to_owned|into)\(\))?|%[iw]\[\]|:\w+"""
    r"""|(?:collections\.)?(?:list|dict|set|tuple|str|(?:byte)?array|frozenset|defaultdict|OrderedDict|deque|Counter|make|new|collect"""
    r"""|Array|Map|Set)\([^()]*\)|Array\.from\(\[\]\)|Object\.create\(null\)"""
    r"""|new\b[\w.:\\<>, \[\]?]*(?:\(\d*\))?\s*(?:\{\s*\})?|[A-Z][\w:]*\.new(?:\(\d*\))?"""
    r"""|[A-Z]\w*\.(?:<\w+>)?(?:of|empty|empty[A-Z]\w*|Empty)(?:<[\w<>?, ]*>)?\(\)|[sS]tring\.Empty"""
    r"""|[\w:<>, ]+::(?:new|default|with_capacity)\(\d*\)|String::from\(""\)|(?:Box|Rc|Arc)::new\(\[\]\)|vec!\[\]"""
    r"""|std::(?:nullopt|(?:\w*(?:string|vector|map|set|list|deque|queue|stack|optional)|make_\w+)(?:<[\w:<>*&, ]*>)?\(\d*\))"""
    r"""|(?:[\w:.<>,*&\[\]]|\{\})*(?:\[\s*\]|\{\s*\})|\[\]\w+\(nil\)|\(\s*\))(?:\.freeze)?(?:!| as [\w.<>\[\]{}|, ]+)?"""
)
# Values that nothing else holds, so that nothing else sees what is added to them.
_NEW = re.compile(r"[\[{]|new\b")
_ADDS = r"(?i:append|add|push|insert|extend|update|put|set|unshift|emplace|sort|reverse)\w*"
_FUNCTION = re.compile(
    r"lambda|closure|arrow_function|func_literal|constructor_declaration|accessor|anonymous|\A(?:singleton_)?method\Z"
    r"|(?:function|method)_(?:definition|declaration|item|expression|statement)"
)
_LOOPS_OVER = re.compile(rb"\.(?:forEach|map|flatMap|filter|reduce|some|every|each)\Z")
_BARE_CALL = re.compile(r"(?<![\w.>:@$])(?!(?:if|for|foreach|while|switch|lock|using|return)\b)[A-Za-z_]\w*\(")
_ITERATES = re.compile(rb"each|map|times|upto|downto|step|loop|open|synchronize|transaction")
_MODIFIER = re.compile(r"\A(?:\$|[\w<>?]+:?\s+)")
_DECLARATION = re.compile(r"expression_statement|declaration(?:_statement)?\Z|assignment_statement")
_BLOCK = re.compile(
    r"block|(?<!class_)body|module|program|source_file|statement_list|translation_unit|chunk|compilation_unit"
    r"|compound_statement|\A(?:then|do|else|begin)\Z|case|section|global_statement"
)
_TRY = re.compile(r"\A(?:try|begin|rescue|ensure)")
_HANDLER = re.compile(r"\A(?:rescue|ensure)\Z")
_MACRO = re.compile(r"[A-Z][A-Z\d_]+\b(?!\s*=)")  # may read any name
_GOTO = re.compile(r"\bgoto\b")
_JUMPS = re.compile(r"\b(?:goto|break|continue|next|redo)\b")
_NULL = re.compile(r"(?i:none|null|nil|nullptr|undefined)")
_UNSET = re.compile(rf"""[-+]?0[\w.]*|(?i:false|nan)|{_NULL.pattern}|(["'`])\1""")


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A statement that assigns values to names; with `is_plain`, they replace the old values, where `+=` does not.

    `values` has the value of each name. If one value is unpacked, it is that of each. `sign` is the offset of the `=`.
    """

    statement: Node
    values: dict[str, str]
    is_plain: bool
    sign: int


def _overwrites(tree: Syntax, answer: Span) -> bool:
    """Return whether the answer gives a local name or a member an empty or constant value, and nothing reads the old one.

    Anything may read a member, so of these only collections count that are emptied again.
    """
    if tree.language.name == "bash":
        return False  # any command may read the variables of a shell
    for match in _ASSIGNS.finditer(tree.text, answer.start, answer.end):
        new = _assignment(tree, Span(*match.span()))
        if new is None or not new.is_plain:
            continue
        for name, value in new.values.items():
            if not _NAME.fullmatch(name) or not _CONSTANT.fullmatch(value) or _has_name(value, name):
                continue
            is_member = not name.isidentifier() or _is_field(tree, new.statement, name)
            if is_member and not (value.endswith(("]", ")", "}")) or value == "nil"):
                continue
            if not _is_shared(tree, new.statement, name, is_member) and _is_unread(tree, new.statement, name, value, is_member):
                return True
    return False


def _releases(tree: Syntax, statement: Node, name: str, new: str) -> bool:
    """Return whether the statement may be there to drop what the name held, such as a lock: it is null and not used below."""
    scope, end = next(filter(_is_function, ancestors(statement)), tree.tree.root_node), tree.span(statement).end
    return bool(_NULL.fullmatch(new)) and not any(place.start >= end for place in _places(tree, scope, name))


def _is_unread(tree: Syntax, statement: Node, name: str, new: str, is_member: bool) -> bool:
    """Return whether the statements before this one in its block only write to the name, back to an assignment.

    `new` is the value that the statement gives it.
    """
    is_collected, before = False, statement.prev_named_sibling
    while before is not None:
        places = list(_places(tree, before, name))
        if _may_jump(tree, before):
            return False
        if not all(_only_writes(tree, place, name) for place in places):
            return False
        old = _assignment(tree, places[0]) if places else None
        if old is not None and old.is_plain and name in old.values and old.statement == before:
            value = old.values[name]
            if is_member and name in value:  # `x.a = append(x.a, 1)`
                is_collected, before = True, before.prev_named_sibling
                continue
            if (value == new and not is_collected) or (_UNSET.fullmatch(value) and not _UNSET.fullmatch(new)):
                return False  # declared with a first value
            if not (is_collected or is_member):
                return len(old.values) > 1 or not _releases(tree, statement, name, new)
            return bool(_CONSTANT.fullmatch(value) or _NEW.match(value))
        if is_member and _may_read(tree, before, name):
            return False
        if places and old is None and before.type.endswith("declaration"):
            return is_collected  # declared without a value
        if any(_is_declared(tree, place) for place in places):
            return False  # another variable, in an inner block
        if not is_member and any(_replaces(tree, place, name) for place in places):
            return not _releases(tree, statement, name, new)
        is_collected = is_collected or bool(places)
        before = before.prev_named_sibling
    return is_member and is_collected and not name.isidentifier()


def _may_jump(tree: Syntax, statement: Node) -> bool:
    """Return whether code elsewhere may run after or before the statement, where its values may be read."""
    text, inner = _text(tree, statement), statement.named_children[0] if statement.named_children else statement
    is_loop = re.search("for|while|loop|do_statement|repeat|until", f"{statement.type} {inner.type}") is not None
    is_macro = tree.language.name in ("c", "cpp") and _MACRO.match(text) is not None
    is_other = re.search("label|attribute_item", statement.type) is not None  # the next statement may have a condition
    return is_other or is_macro or (_GOTO if is_loop else _JUMPS).search(text) is not None


def _replaces(tree: Syntax, place: Span, name: str) -> bool:
    """Return whether a statement in an inner block, such as that of a `with`, gives the name another value."""
    inner = _assignment(tree, place)
    return inner is not None and inner.is_plain and name in inner.values


def _may_read(tree: Syntax, statement: Node, name: str) -> bool:
    """Return whether a statement passes on the object of a member, or calls a method of it."""
    text, (root, _, _) = _text(tree, statement), name.replace("->", ".").rpartition(".")
    root = root or "self|this"
    uses = re.finditer(
        rf"(?<![\w.@])(?:{root if root == 'self|this' else re.escape(root)})(?!\w)((?:\.|->)\w+\b(?!\s*\())?", text
    )
    return any(use[1] is None for use in uses) or (root == "self|this" and _BARE_CALL.search(text) is not None)


def _only_writes(tree: Syntax, place: Span, name: str) -> bool:
    """Return whether the name is there only to be written: `x += 1`, `x[key] = 1`, `x.append(1)`, or `x = append(x, 1)`."""
    written, path = _assignment(tree, place), re.escape(name)
    if written is not None:
        is_target = len(written.values) == 1 or place.start < written.sign
        return is_target and any(re.fullmatch(rf"{path}(?:\[.*)?", target, re.DOTALL) for target in written.values)
    if before := tree.node_at(place).parent:
        while before.parent is not None and not _BLOCK.search(before.parent.type):
            before = before.parent
        if before.type.endswith("declaration") and "=" not in _text(tree, before):
            return True
    around = list(takewhile(lambda node: not _BLOCK.search(node.type), ancestors(tree.node_at(place))))
    if not around or len(list(_places(tree, around[-1], name))) != 1:
        return False
    adds = rf"\$?{path}(?:\+\+|--|\s*<<.*|(?:\.|->|:){_ADDS}(?:[!(\s].*|\Z))|(?:table\.insert|array_push)\(\$?{path},.*"
    return re.fullmatch(adds, _text(tree, around[-1]).rstrip(";"), re.DOTALL) is not None


def _is_field(tree: Syntax, statement: Node, name: str) -> bool:
    """Return whether a name without an object is a field, in a language where methods see their fields so."""
    scope = next(filter(_is_function, ancestors(statement)), tree.tree.root_node)
    is_open = tree.language.bare_methods and not tree.language.assignment_declares
    return is_open and not any(_is_declared(tree, place) for place in _places(tree, scope, name))


def _is_shared(tree: Syntax, statement: Node, name: str, is_member: bool) -> bool:
    """Return whether other code than the statements of its block may see the name's value, or the name is not local."""
    scope = next(filter(_is_function, ancestors(statement)), tree.tree.root_node)
    places = list(islice(_places(tree, scope, name), MAX_PLACES + 1))
    if len(places) > MAX_PLACES:
        return True
    if not (is_member or tree.language.assignment_declares) and not any(_is_declared(tree, place) for place in places):
        return True  # a variable from outside
    around = list(takewhile(lambda node: node != scope, ancestors(statement)))
    if any(node.type == "class_definition" for node in around):
        return True  # a member of a class of Python
    # The handlers of an exception may see any of the values.
    if any(_TRY.match(node.type) or any(_HANDLER.match(child.type) for child in node.children) for node in around):
        return True
    path, keywords = re.escape(name), "ref|out|nonlocal|global|static|volatile"
    if re.search(rf"&\s*(?:mut\s+)?\$?{path}(?!\w)|\b(?:{keywords})\b[^\n;]*?(?<!\w){path}(?!\w)", _text(tree, scope)):
        return True
    if len(list(_places(tree, statement, name))) != 1 and "declarat" not in statement.type:
        return True  # `current, prev.next, prev = prev, None, None`
    around_places = (ancestors(tree.node_at(place)) for place in places)
    scopes = (
        next((node for node in each if _is_function(node) or node.type == "class_definition"), scope) for each in around_places
    )
    return any(each != scope for each in scopes)


def _is_declared(tree: Syntax, place: Span) -> bool:
    """Return whether a declaration gives the name there its first value."""
    inner = takewhile(lambda node: not (_BLOCK.search(node.type) or _is_function(node)), ancestors(tree.node_at(place)))
    for node in inner:
        signs = (child for child in node.children if child.type in _ASSIGN_TOKENS)
        if any(tree.span(sign).start < place.start for sign in signs):
            return False  # a value
        if re.search(r"declarat|short_var", node.type):
            return True
    return False


def _is_function(node: Node) -> bool:
    """Return whether the node's statements may run at another time than those around it."""
    call = node.parent if node.type in ("do_block", "block") else None
    if call is not None and call.type == "call":  # a block of Ruby
        method = call.child_by_field_name("method")
        return method is None or not _ITERATES.match(method.text or b"")
    outer = node.parent.parent if node.parent is not None and node.parent.type == "arguments" else None
    called = outer.child_by_field_name("function") if outer is not None else None
    is_loop = called is not None and _LOOPS_OVER.search(called.text or b"") is not None
    return not is_loop and bool(_FUNCTION.search(node.type))


def _assignment(tree: Syntax, place: Span) -> _Assignment | None:
    """Return the assignment that has the place in its target or its value; None if that is no statement of a block."""
    inner = takewhile(lambda node: not _BLOCK.search(node.type), ancestors(tree.node_at(place)))
    for node in inner:
        sign = next((child for child in node.children if child.type in _ASSIGN_TOKENS), None)
        if sign is None:
            continue
        around = [node, *inner]
        if node.type.endswith("_item"):
            return None  # a type or a constant of Rust, which may have a condition
        value, statement = sign.next_named_sibling, around[-1]
        if value is None or statement.parent is None or not all(_DECLARATION.search(each.type) for each in around[1:]):
            return None
        fields = (node.child_by_field_name(field) for field in ("left", "pattern", "name", "declarator"))
        target = next((field for field in fields if field is not None), node.children[0])
        parts, given = _parts(_text(tree, target)), _text(tree, value)
        # Only in a declaration or a list is the `*` no part of what is assigned to.
        is_starred = len(parts) > 1 or node.child_by_field_name("declarator") == target
        names = [_MODIFIER.sub("", name.lstrip("*") if is_starred else name) for part in parts for name in _parts(part)]
        values = _parts(given) if len(names) > 1 and len(_parts(given)) == len(names) else [given] * len(names)
        is_plain = sign.type in ("=", ":=")
        return _Assignment(statement, dict(zip(names, values, strict=True)), is_plain, tree.span(sign).start)
    return None


def _parts(text: str) -> list[str]:
    """Return the names or values of a list, without its brackets; the whole text if it is one."""
    inner = re.fullmatch(r"(?:list)?[(\[{]([^()\[\]{}]*)[)\]}]", text.strip())
    parts, depth, begin = list[str](), 0, 0
    inside = inner[1] if inner and ("," in inner[1] or text[:1] == "{") else text
    for at, char in enumerate(f"{inside},"):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth <= 0:
            parts.append(inside[begin:at].strip())
            begin = at + 1
    return parts


def _places(tree: Syntax, node: Node, name: str) -> Iterator[Span]:
    """Yield where the name is in the node, without its comments."""
    span = tree.span(node)
    for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", tree.text[span.start : span.end]):
        place = Span(span.start + match.start(), span.start + match.end())
        if "comment" not in tree.node_at(place).type:
            yield place


def _has_name(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _text(tree: Syntax, node: Node) -> str:
    span = tree.span(node)
    return tree.text[span.start : span.end]
