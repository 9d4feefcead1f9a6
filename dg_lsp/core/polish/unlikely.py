"""Recognise answers that are valid code and can hardly be meant: endless recursion, and a value that is overwritten unread.

Such an answer is kept, because this is judged without types. Front ends rank it below all others, and show it only on
request. Nodes are recognised by what the grammars have in common: the `arguments` of a call, and the `=` of an assignment.
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
)
_CONDITIONAL = re.compile(
    r"(?:\A|_)(?:if|while|for|foreach|switch|try(?!_expression)|do|unless|until|match|case|select|repeat)_|conditional"
)
_SHORT_CIRCUIT = frozenset({"&&", "||", "??", "and", "or"})


def _only_calls_itself(tree: Syntax, answer: Span) -> bool:
    """Return whether the answer has the only statement of a function, which calls that function without a condition."""
    facts = tree.facts_near(answer)
    holders = [owner for owner in facts.owners if owner.inside.holds(answer) and owner.kind != "closure"]
    if not holders or holders[-1].kind != "function":
        return False
    function = holders[-1]
    statements = [node for node in function.items if "comment" not in node.type and not facts.has("docstring", node)]
    if len(statements) != 1 or not _overlap(tree.span(statements[0]), answer):
        return False
    names = _names(tree, function, holders[-2] if len(holders) > 1 else None)
    value = statements[0]
    while re.search(r"return|statement|await|expression_list", value.type) and value.named_child_count == 1:
        value = value.named_children[0]
    if tree.language.has_getters and value.child_by_field_name("arguments") is None and _plain(_text(tree, value)) in names:
        return True
    return any(_callee(tree, node) in names and _is_same(tree, function, node) for node in _straight(statements[0]))


def _names(tree: Syntax, function: Owner, around: Owner | None) -> set[str]:
    """Return what the function's own body can call it; `around` is the function or class that it is in."""
    whole_name = _plain(re.split(r"[(\s]", function.name.lstrip("*& "))[0])
    name = whole_name.rpartition(".")[2]
    signature = tree.text[tree.span(function.node).start : function.inside.start]
    is_hidden = len(re.findall(rf"(?<!\w){re.escape(name)}(?!\w)", signature)) > 1  # by a parameter
    bare = set() if is_hidden else {name}
    receiver = function.node.child_by_field_name("receiver")
    if receiver is not None:  # a method of Go
        return {f"{variable}.{name}" for variable in re.findall(r"\w+", _text(tree, receiver))[:1]}
    outer = next((node for node in ancestors(function.node) if node.type in ("impl_item", "trait_item")), None)
    is_member = function.node.type == "field" or "method" in function.node.type or whole_name != name
    is_method = is_member or (around is not None and around.kind == "class")
    if not is_method and (outer is None or around is not None):
        return bare
    if any(child.type == "explicit_interface_specifier" for child in function.node.children):
        return set()  # C# has another method of that name for it
    # The call may mean another implementation of a trait, or a method of the type itself.
    trait = outer.child_by_field_name("trait") if outer is not None else None
    if trait is not None and (trait.type == "generic_type" or len(re.findall(rf"\bfn\s+{name}\b", tree.text)) > 1):
        return set()
    objects = (*_ITSELF, around.name) if around is not None else _ITSELF
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


def _callee(tree: Syntax, node: Node) -> str:
    """Return what a call calls; "" if the node is no call."""
    if (arguments := node.child_by_field_name("arguments")) is not None:
        return _plain(tree.text[tree.span(node).start : tree.span(arguments).start])
    name = node.child_by_field_name("name") if node.type == "command" else None
    return _text(tree, name) if name is not None else ""


def _is_same(tree: Syntax, function: Owner, call: Node) -> bool:
    """Return whether the call means this function; where a language has overloads, only the same arguments say so."""
    if not tree.language.has_overloads:
        return True
    holder: Node | None = function.node
    while holder is not None and holder.child_by_field_name("parameters") is None:
        holder = holder.child_by_field_name("declarator")
    parameters = holder.child_by_field_name("parameters") if holder is not None else None
    arguments = call.child_by_field_name("arguments")
    if parameters is None or arguments is None:
        return False
    names = [("", *re.findall(r"\w+", _text(tree, node).partition("=")[0]))[-1] for node in parameters.named_children]
    return names == [_text(tree, node) for node in arguments.named_children]


def _plain(name: str) -> str:
    """Return a name with points between its parts, whatever the language has there."""
    return re.sub(r"\s", "", re.sub(r"::|->|:", ".", name))


# --- A value that is overwritten before it was read

MAX_PLACES = 100  # a name that is in more places is not judged
_ASSIGNS = re.compile(r"(?<![\w.>@])\$?([^\W\d]\w*)(?:[ \t]*:[^=\n]*)?[ \t]*:?=(?![=>~])")
_ASSIGN_TOKENS = frozenset(f"{sign}=" for sign in ("", ":", *"+-*/%|&^.", "//", "**", "<<", ">>", "||", "&&", "??", ".."))
_CONSTANT = re.compile(
    r"""[-+]?\d[\w.]*|(?i:true|false|none|null|nil|nullptr|undefined)|(["'`])(?:(?!\1)[^$#{\\])*\1|"""
    r"""(?:list|dict|set|tuple|str|array|make|Array|Map|Set)\([^()]*\)|new [\w.<>, ]+\(\)|(?:Array|Hash|Set)\.new|"""
    r"""[\w:<>]+::(?:new|default)\(\)|vec!\[\]|[\w:.<>,*\[\]]*(?:\[\s*\]|\{\s*\})|\(\s*\)"""
)
# Values that nothing else holds, so that nothing else sees what is added to them.
_NEW = re.compile(r"[\[{]|new\b")
_ADDS = r"(?i:append|add|push|insert|extend|update|put|set|unshift|emplace)\w*"
_FUNCTION = re.compile(
    r"lambda|closure|arrow_function|func_literal|constructor_declaration|accessor|anonymous|\A(?:singleton_)?method\Z"
    r"|(?:function|method)_(?:definition|declaration|item|expression|statement)"
)
_ITERATES = re.compile(rb"each|map|times|upto|downto|step|loop")
_DECLARATION = re.compile(r"expression_statement|declaration(?:_statement)?\Z|assignment_statement")
_BLOCK = re.compile(
    r"block|(?<!class_)body|module|program|source_file|statement_list|translation_unit|chunk|compilation_unit"
    r"|compound_statement|\A(?:then|do|else)\Z|case|section|global_statement"
)
_TRY = re.compile(r"\A(?:try|begin|rescue|ensure)")


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A statement that assigns one value to one target; with `is_plain`, it replaces the old value, where `+=` does not."""

    statement: Node
    target: str
    value: str
    is_plain: bool


def _overwrites(tree: Syntax, answer: Span) -> bool:
    """Return whether the answer gives a local name an empty or constant value, and nothing reads what the name had before."""
    if tree.language.name == "bash":
        return False  # any command may read the variables of a shell
    for match in _ASSIGNS.finditer(tree.text, answer.start, answer.end):
        name, new = match[1], _assignment(tree, Span(*match.span(1)))
        if (
            new is not None
            and new.is_plain
            and new.target == name
            and _CONSTANT.fullmatch(new.value)
            and not _is_shared(tree, new.statement, name)
            and _is_unread(tree, new.statement, name)
        ):
            return True
    return False


def _is_unread(tree: Syntax, statement: Node, name: str) -> bool:
    """Return whether the statements before this one in its block only write to the name, back to an assignment."""
    is_collected, before = False, statement.prev_named_sibling
    while before is not None:
        places = list(_places(tree, before, name))
        if not all(_only_writes(tree, place, name) for place in places):
            return False
        old = _assignment(tree, places[0]) if places else None
        if old is not None and old.is_plain and old.target == name and old.statement == before:
            return not is_collected or bool(_CONSTANT.fullmatch(old.value) or _NEW.match(old.value))
        is_collected = is_collected or bool(places)
        before = before.prev_named_sibling
    return False


def _only_writes(tree: Syntax, place: Span, name: str) -> bool:
    """Return whether the name is there only to be written: `x += 1`, `x[key] = 1`, `x.append(1)`, or `x = append(x, 1)`."""
    written = _assignment(tree, place)
    if written is not None:
        return re.fullmatch(rf"{name}(?:\[.*)?", written.target, re.DOTALL) is not None
    around = list(takewhile(lambda node: not _BLOCK.search(node.type), ancestors(tree.node_at(place))))
    if not around or len(list(_places(tree, around[-1], name))) != 1:
        return False
    adds = rf"\$?{name}(?:\+\+|--|\s*<<.*|(?:\.|->|:){_ADDS}[!(\s].*)|(?:table\.insert|array_push)\(\$?{name},.*"
    return re.fullmatch(adds, _text(tree, around[-1]).rstrip(";"), re.DOTALL) is not None


def _is_shared(tree: Syntax, statement: Node, name: str) -> bool:
    """Return whether other code than the statements of its block may see the name's value, or the name is not local."""
    scope = next(filter(_is_function, ancestors(statement)), tree.tree.root_node)
    places = list(islice(_places(tree, scope, name), MAX_PLACES + 1))
    if len(places) > MAX_PLACES:
        return True
    if not tree.language.assignment_declares and not any(_is_declared(tree, place) for place in places):
        return True  # a variable from outside
    around = list(takewhile(lambda node: node != scope, ancestors(statement)))
    # The handlers of an exception may see any of the values.
    if any(_TRY.match(child.type) for node in around for child in (node, *node.children)):
        return True
    keywords = "ref|out|nonlocal|global|static|volatile"
    if re.search(rf"&\s*(?:mut\s+)?\$?{name}\b|\b(?:{keywords})\b[^\n;]*?\b{name}\b", _text(tree, scope)):
        return True
    functions = (next(filter(_is_function, ancestors(tree.node_at(place))), scope) for place in places)
    return any(function != scope for function in functions)


def _is_declared(tree: Syntax, place: Span) -> bool:
    inner = takewhile(lambda node: not (_BLOCK.search(node.type) or _is_function(node)), ancestors(tree.node_at(place)))
    return any(re.search(r"declarat|short_var", node.type) for node in inner)


def _is_function(node: Node) -> bool:
    """Return whether the node's statements may run at another time than those around it."""
    call = node.parent if node.type in ("do_block", "block") else None
    if call is not None and call.type == "call":  # a block of Ruby
        method = call.child_by_field_name("method")
        return method is None or not _ITERATES.match(method.text or b"")
    return bool(_FUNCTION.search(node.type))


def _assignment(tree: Syntax, place: Span) -> _Assignment | None:
    """Return the assignment that has the place in its target or its value; None if that is no statement of a block."""
    inner = takewhile(lambda node: not _BLOCK.search(node.type), ancestors(tree.node_at(place)))
    for node in inner:
        sign = next((child for child in node.children if child.type in _ASSIGN_TOKENS), None)
        if sign is None:
            continue
        around = [node, *inner]
        value, statement = sign.next_named_sibling, around[-1]
        if value is None or statement.parent is None or not all(_DECLARATION.search(each.type) for each in around[1:]):
            return None
        fields = (node.child_by_field_name(field) for field in ("left", "pattern", "name", "declarator"))
        target = next((field for field in fields if field is not None), node.children[0])
        return _Assignment(statement, _text(tree, target).lstrip("$"), _text(tree, value), sign.type in ("=", ":="))
    return None


def _places(tree: Syntax, node: Node, name: str) -> Iterator[Span]:
    """Yield where the name is in the node, without its comments."""
    span = tree.span(node)
    for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", tree.text[span.start : span.end]):
        place = Span(span.start + match.start(), span.start + match.end())
        if "comment" not in tree.node_at(place).type:
            yield place


def _text(tree: Syntax, node: Node) -> str:
    span = tree.span(node)
    return tree.text[span.start : span.end]


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end
