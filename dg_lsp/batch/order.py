"""Decide the order of requests: a function is filled after the functions that it calls, also in other files.

Calls are found by name: in the code around a hole, in functions that this code calls, and where a comment or a docstring has
`name` in backquotes or name(). A cycle is broken where the first file, or the first hole, closes it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from dg_lsp.batch.plan import FilePlan
from dg_lsp.core.syntax import Owner, Syntax

MAX_NAMESAKES = 4  # a name that more functions of other files have is ambiguous

_CALL = re.compile(r"call|invocation|creation|new_expression|^command$")
_CALLEE_FIELDS = ("function", "name", "method", "macro", "constructor", "type")
_PROSE_NAMES = re.compile(r"`[\w.:]*?(\w+)(?:\(\))?`|\b(\w+)\(")


@dataclass(frozen=True, slots=True)
class After:
    """The predecessors of a request: groups of its own file, and whole other files, as indices into the plans."""

    groups: tuple[int, ...] = ()
    files: tuple[int, ...] = ()


@dataclass(slots=True)
class _Function:
    """A named function: its file, the groups with a hole in it, and the names that it calls."""

    file: int
    name: str
    groups: tuple[int, ...]
    calls: frozenset[str]


@dataclass(slots=True)
class _Graph:
    functions: list[_Function]
    by_name: dict[str, list[_Function]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for function in self.functions:
            self.by_name.setdefault(function.name, []).append(function)

    def callees(self, function: _Function, languages: Sequence[str]) -> Iterator[_Function]:
        """Yield the functions that a function calls: those of its own file, or else those of other files with that name."""
        for name in sorted(function.calls):
            namesakes = [each for each in self.by_name.get(name, ()) if languages[each.file] == languages[function.file]]
            own = [each for each in namesakes if each.file == function.file]
            if own or len(namesakes) <= MAX_NAMESAKES:
                yield from own or namesakes


def of(plans: Sequence[FilePlan]) -> list[tuple[After, ...]]:
    """Return, for each plan, the predecessors of each of its groups, without cycles."""
    languages = [plan.source.document.language for plan in plans]
    functions = [function for idx, plan in enumerate(plans) for function in _functions(idx, plan)]
    graph = _Graph(functions)
    groups: list[list[set[int]]] = [[set() for _ in plan.groups] for plan in plans]
    files: list[list[set[int]]] = [[set() for _ in plan.groups] for plan in plans]
    for function in functions:
        for callee in _open_callees(graph, function, languages) if function.groups else ():
            for group in function.groups:
                if callee.file == function.file:
                    groups[function.file][group] |= set(callee.groups)
                else:
                    files[function.file][group].add(callee.file)
    file_edges = acyclic([set[int]().union(*each) for each in files])
    group_edges = [acyclic(each) for each in groups]
    return [
        tuple(
            After(tuple(sorted(group_edges[idx][group])), tuple(sorted(files[idx][group] & file_edges[idx])))
            for group in range(len(plan.groups))
        )
        for idx, plan in enumerate(plans)
    ]


def acyclic(edges: Sequence[Collection[int]]) -> list[frozenset[int]]:
    """Return the edges of each node without those that close a cycle in a depth-first search from the first node."""
    left: list[set[int]] = [set() for _ in edges]
    is_over = [False] * len(edges)
    is_open = [False] * len(edges)
    for root in range(len(edges)):
        if is_over[root]:
            continue
        # An explicit stack: a chain of calls may exceed Python's recursion limit.
        stack = [(root, iter(sorted(edges[root])))]
        is_open[root] = True
        while stack:
            node, rest = stack[-1]
            target = next(rest, None)
            if target is None:
                stack.pop()
                is_open[node], is_over[node] = False, True
            elif not is_open[target]:
                left[node].add(target)
                if not is_over[target]:
                    is_open[target] = True
                    stack.append((target, iter(sorted(edges[target]))))
    return [frozenset(each) for each in left]


def closure(start: Collection[int], edges: Callable[[int], Collection[int]]) -> tuple[int, ...]:
    """Return all nodes reachable from the start nodes, including these, in order."""
    reached, todo = set(start), list(start)
    while todo:
        fresh = set(edges(todo.pop())) - reached
        reached |= fresh
        todo += fresh
    return tuple(sorted(reached))


def _open_callees(graph: _Graph, function: _Function, languages: Sequence[str]) -> list[_Function]:
    """Return the functions with holes that a function calls, directly or through functions without holes."""
    reached: list[_Function] = []
    visited, todo = {id(function)}, [function]
    while todo:
        for callee in graph.callees(todo.pop(), languages):
            if id(callee) in visited:
                continue
            visited.add(id(callee))
            # Calls of a function with holes are its own predecessors, and so come before this one too.
            (reached if callee.groups else todo).append(callee)
    return reached


def _functions(file: int, plan: FilePlan) -> Iterator[_Function]:
    if plan.syntax is None:
        return
    owners = [owner for owner in plan.syntax.facts.owners if owner.kind == "function" and owner.name]
    innermost: dict[int, list[int]] = {}
    prose: dict[int, list[str]] = {}
    for number, group in enumerate(plan.groups):
        for hole in group:
            around = [owner for owner in owners if owner.inside.holds(hole.span)]
            if around:
                owner = min(around, key=lambda owner: owner.inside.end - owner.inside.start)
                innermost.setdefault(owner.node.id, []).append(number)
                prose.setdefault(owner.node.id, []).append(hole.instruction)
    for owner in owners:
        numbers = tuple(dict.fromkeys(innermost.get(owner.node.id, ())))
        names = set(_called(owner.node))
        if numbers:
            texts = [*prose[owner.node.id], *_comments(plan.syntax, owner)]
            names |= {match[1] or match[2] for text in texts for match in _PROSE_NAMES.finditer(text)}
        name = _last_word(owner.name.partition("(")[0])  # in C the name includes the parameters
        yield _Function(file, name, numbers, frozenset(names - {name}))


def _called(top: Node) -> Iterator[str]:
    todo = [top]
    while todo:
        node = todo.pop()
        todo += node.children
        if _CALL.search(node.type):
            callee = next((child for name in _CALLEE_FIELDS if (child := node.child_by_field_name(name))), None)
            if callee is not None and callee.text and (name := _last_word(callee.text.decode(errors="replace"))):
                yield name


def _last_word(text: str) -> str:
    words: list[str] = re.findall(r"\w+", text)
    return words[-1] if words else ""


def _comments(syntax: Syntax, owner: Owner) -> list[str]:
    nodes = [*syntax.facts.all("comment"), *syntax.facts.all("docstring")]
    return [syntax.text[span.start : span.end] for node in nodes if owner.inside.holds(span := syntax.span(node))]


def paths(plans: Sequence[FilePlan], order: Sequence[Sequence[After]]) -> Mapping[int, tuple[int, ...]]:
    """Return, for each plan, all the files that come before it, directly or indirectly."""
    direct = [frozenset(file for after in groups for file in after.files) for groups in order]
    return {idx: closure(direct[idx], lambda file: direct[file]) for idx in range(len(plans))}
