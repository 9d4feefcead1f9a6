"""Find names that a file uses and never binds, in any language whose syntax tells uses from bindings.

If every occurrence of a name in a file is a use, nothing in that file binds it. The method is rough but safe: an
occurrence that is not certainly a use counts as a binding.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
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
    facts, ancestors = filled.facts_near(span), list(_ancestors(node))
    if any(facts.has("comment", each) for each in ancestors):
        return "nothing"
    if any(each.is_error for each in ancestors):
        return "binds"
    if node.type in _MEMBERS:
        return "nothing"
    if node.type not in ("identifier", "shorthand_property_identifier"):
        is_text = any(facts.has("string", each) for each in ancestors)
        # A Go import path ends with the name that it binds.
        return "nothing" if is_text and not any("import" in each.type for each in ancestors) else "binds"
    child, parent = node, node.parent
    while parent is not None and parent.type == "expression_list":
        child, parent = parent, parent.parent
    if parent is None:
        return "binds"
    field = _field(child, parent)
    if (parent.type, field) in _MEMBER_FIELDS:
        return "nothing"
    fields = _USES[filled.language.name].get(parent.type)
    return "uses" if fields is not None and (not fields or field in fields) else "binds"


def _ancestors(node: Node | None) -> Iterator[Node]:
    while node is not None:
        yield node
        node = node.parent


def _field(child: Node, parent: Node) -> str | None:
    idx = next((idx for idx, each in enumerate(parent.children) if each.id == child.id), -1)
    return parent.field_name_for_child(idx) if idx >= 0 else None


_WORD = re.compile(r"(?<![\w$])[^\W\d][\w$]*")
# Names that are looked up in a value, not in a scope.
_MEMBERS = frozenset({"property_identifier", "private_property_identifier", "field_identifier", "statement_identifier"})
_MEMBER_FIELDS = frozenset({("attribute", "attribute"), ("keyword_argument", "name")})

# For each kind of node, the fields in which a name is a use; an empty tuple means all fields.
_Uses = Mapping[str, tuple[str, ...]]
_PYTHON: _Uses = {
    "call": ("function",),
    "argument_list": (),
    "keyword_argument": ("value",),
    "attribute": ("object",),
    "subscript": (),
    "binary_operator": (),
    "boolean_operator": (),
    "comparison_operator": (),
    "not_operator": (),
    "unary_operator": (),
    "conditional_expression": (),
    "parenthesized_expression": (),
    "await": (),
    "return_statement": (),
    "raise_statement": (),
    "assert_statement": (),
    "if_statement": ("condition",),
    "elif_clause": ("condition",),
    "while_statement": ("condition",),
    "for_statement": ("right",),
    "for_in_clause": ("right",),
    "assignment": ("right",),
    "augmented_assignment": ("right",),
    "list": (),
    "set": (),
    "pair": (),
    "interpolation": (),
    "expression_statement": (),
}
_JAVASCRIPT: _Uses = {
    "call_expression": ("function",),
    "new_expression": ("constructor",),
    "arguments": (),
    "member_expression": ("object",),
    "subscript_expression": (),
    "binary_expression": (),
    "unary_expression": (),
    "update_expression": (),
    "ternary_expression": (),
    "parenthesized_expression": (),
    "await_expression": (),
    "spread_element": (),
    "template_substitution": (),
    "return_statement": (),
    "throw_statement": (),
    "expression_statement": (),
    "variable_declarator": ("value",),
    "assignment_expression": ("right",),
    "augmented_assignment_expression": (),
    "for_in_statement": ("right",),
    "arrow_function": ("body",),
    "array": (),
    "pair": ("value",),
    "object": (),
}
_GO: _Uses = {
    "call_expression": ("function",),
    "argument_list": (),
    "selector_expression": ("operand",),
    "index_expression": (),
    "slice_expression": (),
    "binary_expression": (),
    "unary_expression": (),
    "parenthesized_expression": (),
    "return_statement": (),
    "if_statement": ("condition",),
    "for_statement": ("condition",),
    "range_clause": ("right",),
    "short_var_declaration": ("right",),
    "assignment_statement": ("right",),
    "var_spec": ("value",),
    "inc_statement": (),
    "dec_statement": (),
}
_USES: Mapping[str, _Uses] = {
    "python": _PYTHON,
    "javascript": _JAVASCRIPT,
    "typescript": _JAVASCRIPT,
    "tsx": _JAVASCRIPT,
    "go": _GO,
}

# Names that the environment provides: those of the language and of the platforms that it runs on.
_SCRIPT_GLOBALS = frozenset(
    """
    AbortController AbortSignal AggregateError Array ArrayBuffer Atomics BigInt BigInt64Array BigUint64Array Blob Boolean
    Buffer CustomEvent DOMException DOMParser DataView Date Document Element Error EvalError Event EventSource EventTarget
    FileReader File Float32Array Float64Array FormData Function Headers HTMLElement Image Infinity Int16Array Int32Array
    Int8Array IntersectionObserver Intl Iterator JSON KeyboardEvent Map Math MessageChannel MouseEvent MutationObserver NaN
    Node Notification Number Object Promise Proxy RangeError ReadableStream ReferenceError Reflect RegExp Request
    ResizeObserver Response Set SharedArrayBuffer String Symbol SyntaxError TextDecoder TextEncoder TypeError URIError URL
    URLSearchParams Uint16Array Uint32Array Uint8Array Uint8ClampedArray WeakMap WeakRef WeakSet WebAssembly WebSocket Worker
    XMLHttpRequest __dirname __filename addEventListener afterAll afterEach alert arguments assert atob beforeAll beforeEach
    btoa caches cancelAnimationFrame clearImmediate clearInterval clearTimeout confirm console crypto customElements
    decodeURI decodeURIComponent define describe dispatchEvent document encodeURI encodeURIComponent escape eval exports
    expect fetch getComputedStyle global globalThis history indexedDB isFinite isNaN it jest jQuery localStorage location
    matchMedia module navigator parseFloat parseInt performance process prompt queueMicrotask removeEventListener require
    requestAnimationFrame screen self sessionStorage setImmediate setInterval setTimeout structuredClone test undefined
    unescape vi window React $ _
    """.split()  # noqa: SIM905  # a hundred lines of one name each are harder to read
)
_GIVEN: Mapping[str, frozenset[str]] = {
    "python": frozenset(dir(builtins)) | {"__file__", "__name__", "__doc__", "__class__", "__path__", "__spec__", "_"},
    "javascript": _SCRIPT_GLOBALS,
    "typescript": _SCRIPT_GLOBALS,
    "tsx": _SCRIPT_GLOBALS,
    "go": frozenset(
        """
        append cap clear close complex copy delete imag len make max min new panic print println real recover
        any bool byte comparable complex64 complex128 error float32 float64 int int8 int16 int32 int64 rune string
        uint uint8 uint16 uint32 uint64 uintptr true false iota nil _
        """.split()  # noqa: SIM905  # likewise
    ),
}
