"""Find what a grammar accepts and no compiler does: tags that do not match, reserved words as names, and the like.

Only the nodes near an answer are looked at, and in Ruby and shell the words that close blocks. A fault that the document has
without the answer is not the answer's.
"""

from __future__ import annotations

import re
from itertools import takewhile

from tree_sitter import Node

from dg_lsp.core import languages
from dg_lsp.core.polish import placement
from dg_lsp.core.syntax import Syntax, ancestors
from dg_lsp.core.values import Span

# Words that no program of the language may use as a name. Words that are keywords only in some places, such as Python's
# `match`, are left out, and so are words that macros take, such as C's `return`. Languages without a row need no check: the
# grammar of Go accepts no keyword as a name, and Python's compiler sees the `async` that its grammar accepts.
_C = "case do else for if sizeof switch while"
_CURLY = "break case catch class const continue do else finally for if new return switch throw try while"
_SCRIPT = f"{_CURLY} enum extends import in instanceof typeof var void with"
_RESERVED = {
    name: frozenset(words.split())
    for name, words in {
        "javascript": _SCRIPT,
        "typescript": _SCRIPT,
        "tsx": _SCRIPT,
        "java": f"{_CURLY} extends import instanceof void",
        "csharp": f"{_CURLY} foreach in is namespace out ref sizeof struct typeof void",
        "c": _C,
        "cpp": f"{_C} alignof catch new throw try",
        "php": f"{_CURLY} elseif foreach instanceof",
        "rust": """
            break const continue dyn else enum fn for if impl in let loop match mod move mut pub ref return struct trait use
            where while
        """,
        "ruby": """
            begin break case class def do else elsif end ensure for if in module next redo rescue retry return then undef
            unless until when while
        """,
        "lua": "and break do else elseif end for function if in local not or repeat return then until while",
    }.items()
}
# Nodes in which any word may be a name: members, labels of arguments, elements of JSX, macros, the alias of an import. In C++,
# the arguments of a constructor look like the parameters of a function.
_HAS_ANY_WORD = re.compile(
    r"member|scoped|class_constant|method|argument_name|keyword_parameter|pair|variable_name|token_|macro|preproc|lifetime"
    r"|(?:import|export)_specifier|namespace_(?:export|use|name)|qualified|use_(?:as|instead)|const_element|enum_case"
    r"|parameter_declaration|\Ajsx_|\Aalias\Z|\Aundef\Z"
)
_NAMES = frozenset({"identifier", "type_identifier", "name", "namespace_identifier"})
# The words that close a block. The grammars of these languages take one that closes nothing for a name or a command.
_CLOSERS = {"bash": re.compile(r"\b(?:do|done|elif|else|esac|fi|then)\b"), "ruby": re.compile(r"\bend\b")}
# The grammar of shell misreads some blocks, such as one after `time`. Words that begin such blocks, and that end them.
_BEGINS, _ENDS = re.compile(r"\b(?:case|for|if|select|until|while)\b"), re.compile(r"\b(?:done|esac|fi)\b")
# What a statement must be in. In PHP, `continue` may end a `switch`.
_LOOPS, _SWITCHES = r"for|while|do|loop|repeat|enhanced_for", r"switch|select|expression_switch|type_switch"
_OUTER = {"break": rf"{_LOOPS}|{_SWITCHES}", "continue": _LOOPS, "case": _SWITCHES}
_INNER = re.compile(r"\A(?:(break|continue)_(?:statement|expression)|(case)_statement)\Z")
_LABEL = re.compile(r"label|identifier")
_FUNCTION = re.compile(r"function|lambda|closure|method|func_literal")
_HEREDOC = re.compile(r"<<[-~]?[\"'`]?(\w+)")
# The expressions that are a statement; the grammars of other languages have no others, or any is one.
# A call with type arguments may be taken for the conversion to a type of Go.
_ACTS = {"java": re.compile(r"assignment|creation|invocation|switch|update"), "go": re.compile(r"call|conversion|paren|unary")}


def count(tree: Syntax, span: Span, *, is_file: bool) -> int:
    """Return the number of faults in the nodes that touch the span, and around it.

    With `is_file`, the text is a whole file, so that a `break` without a loop is one.
    """
    nodes = {node.id: node for node in (*tree.touching(span, margin=1), *ancestors(tree.node_at(span)))}
    return sum(_is_fault(tree, node, is_file and not tree.parts) for node in nodes.values())


def closes_early(before: Syntax, after: Syntax, span: Span) -> bool:
    """Return whether the answer in the span closes a block that it did not open, so that a word below closes nothing.

    It is False if there was such a word before.
    """
    closer = _CLOSERS.get(after.language.name)
    if closer is None or not closer.search(after.text, max(0, span.start - _WORD_CHARS), span.end + _WORD_CHARS):
        return False
    answer = languages.mask(after.text[span.start : span.end], after.language.name)
    n_begun = len(_BEGINS.findall(answer)) if after.language.name == "bash" else 0
    if n_begun and n_begun >= len(_ENDS.findall(answer)):
        return False
    return _has_lone_closer(after, closer) and not _has_lone_closer(before, closer)


_WORD_CHARS = 5  # more than the part of a word that closes a block which is typed before its end


def _has_lone_closer(tree: Syntax, closer: re.Pattern[str]) -> bool:
    """Return whether a word that closes a block is a name or a command."""
    for match in closer.finditer(tree.text):
        node = tree.node_at(Span(*match.span()))
        name = node.parent if node.type == "word" and node.parent is not None else node
        is_name = name.type == "command_name" or (name.type == "identifier" and _is_reserved(name, match[0], "ruby"))
        if is_name and name.text == match[0].encode():
            return True
    return False


def _is_fault(tree: Syntax, node: Node, is_file: bool) -> bool:
    kind, language, parent = node.type, tree.language.name, node.parent.type if node.parent is not None else ""
    if placement.is_misplaced(tree, node, is_file=is_file) or placement.is_again(tree, node):
        return True
    if kind in _NAMES:
        return _is_reserved(node, (node.text or b"").decode("utf-8", "replace"), language)
    if kind == "jsx_element":
        tags = [child.child_by_field_name("name") for child in node.children if child.type.startswith("jsx_")]
        names = [tag.text if tag is not None else b"" for tag in (tags[0], tags[-1])] if tags else []
        return len(set(names)) > 1
    if kind == "heredoc_beginning":
        span = tree.span(node)
        word = _HEREDOC.match(tree.text, span.start)
        return word is not None and re.search(rf"^[ \t]*{word[1]}\b", tree.text[span.end :], re.MULTILINE) is None
    if kind == "expression_statement" and language in _ACTS:
        value = node.named_children[0] if node.named_child_count == 1 and not node.has_error else None
        if parent == "switch_rule" or value is None:
            return False
        is_number = value.type == "unary_expression" and value.children[0].type != "<-"
        return is_number or not _ACTS[language].search(value.type)
    if kind == "object_creation_expression" and language == "csharp":
        # `new A<B>(c)` may be taken for two comparisons.
        return parent not in ("binary_expression", "ERROR") and not any(
            re.search("list|initializer", child.type) for child in node.children
        )
    if kind == "lexical_declaration" and node.children[0].type == "const":
        # A declaration of TypeScript has no value. In a `.d.ts` file, only its type tells.
        is_declared = any(other.type == "ambient_declaration" for other in ancestors(node))
        return not is_declared and any(
            child.type == "variable_declarator" and not any(child.child_by_field_name(field) for field in ("value", "type"))
            for child in node.children
        )
    if kind == "else" and language == "ruby" and node.is_named and parent in ("begin", "body_statement"):
        return not any(other.type == "rescue" for other in (node.parent or node).children)
    inner = _INNER.match(kind)
    if is_file and inner and language not in ("ruby", "bash"):
        return _is_outside(node, "break" if language == "php" and inner[1] else inner[1] or inner[2])
    return False


def _is_outside(node: Node, word: str) -> bool:
    """Return whether no loop or `switch` is around a statement that begins with this word."""
    around = takewhile(lambda other: not _FUNCTION.search(other.type), ancestors(node.parent))
    labels = {child.type for child in node.children if _LABEL.search(child.type)}
    outer = re.compile(rf"\A(?:{_OUTER[word]}{'|labeled' if labels else ''})")
    # Any block of Rust may have a label.
    return "label" not in labels and not any(outer.match(other.type) for other in around)


def _is_reserved(node: Node, text: str, language: str) -> bool:
    """Return whether a name is a reserved word of the language, in a place where no such word may be a name."""
    if text not in _RESERVED.get(language, ()) or node.is_missing or node.parent is None:
        return False
    before = node.prev_sibling
    is_member = before is not None and before.type in (".", "?.", "&.", "->", "?->", "::", ":", "@")
    # The name of an argument in PHP, or of an element of a tuple in TypeScript.
    outer = node.parent.parent.type if node.parent.parent is not None else ""
    is_label = outer == "tuple_type" or (node.parent.type == "argument" and node.parent.child_by_field_name("name") == node)
    return not (is_member or is_label or _HAS_ANY_WORD.search(node.parent.type))
