"""Find the comments of a text, and which of them describe a function or belong to its body."""

from __future__ import annotations

import re

from dg_lsp.core.holes.wording import DELIBERATE, DIRECTIVE, HOOK, words
from dg_lsp.core.syntax import Owner, Syntax
from dg_lsp.core.values import Span


class Comments:
    """The comments of a text, indexed by the line that they end on."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        index = syntax.lines
        self.spans = [syntax.span(node) for node in syntax.facts.all("comment")]
        self.alone = {
            index.at(span.end): span
            for span in self.spans
            if not syntax.text[index.starts[index.at(span.start)] : span.start].strip()
        }
        self.decorations = {
            index.at(span.end): index.at(span.start) for span in (syntax.span(node) for node in syntax.facts.all("decoration"))
        }

    def says(self, span: Span) -> str:
        """Return the comment's words, or "" for a directive to a tool."""
        inner = words(self.syntax.text[span.start : span.end], self.syntax.language)
        return "" if DIRECTIVE.match(inner) else inner

    def describes(self, owner: Owner) -> bool:
        """Return whether a meaningful comment is directly above the owner or above its decorators."""
        index = self.syntax.lines
        start = self.syntax.span(owner.node).start
        line = index.at(start)
        # A comment does not describe an owner that follows other code on its line, as in minified files.
        if not _WORDS.fullmatch(self.syntax.text, index.starts[line], start):
            return False
        indent = index.indent(line)
        while line > 0:
            line -= 1
            if line in self.decorations:
                line = self.decorations[line]
            elif line in self.alone and index.indent(index.at(self.alone[line].start)) == indent:
                says = self.says(self.alone[line])
                if says:
                    return not (DELIBERATE.match(says) or HOOK.search(says))
                line = index.at(self.alone[line].start)
            else:
                break
        return False

    def after(self, owner: Owner) -> list[Span]:
        """Return the comments after the body's last node that belong to the body by their indentation."""
        index, text = self.syntax.lines, self.syntax.text
        end, outer = owner.inside.end, index.indent(index.at(self.syntax.span(owner.node).start))
        trailing_spans = []
        for span in self.spans:
            if span.start < end:
                continue
            indent = index.indent(index.at(span.start))
            same_line = index.at(span.start) == index.at(end)
            if text[end : span.start].strip() or not (
                same_line or (len(indent) > len(outer) and span == self.alone.get(index.at(span.end)))
            ):
                break
            trailing_spans.append(span)
            end = span.end
        return trailing_spans


_WORDS = re.compile(r"[\w\s]*")
