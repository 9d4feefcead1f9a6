"""Texts with something left open, which make parsers search for a way to continue.

As a program, it parses many such texts of one language and prints one line: how many, how many took longer than the
parser's limit, and the largest share of the limit that a parse took.

    python -m tests.hostile.unclosed typescript 10000
"""

from __future__ import annotations

import random
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass

from dg_lsp.core import excerpt, languages, positions, syntax
from dg_lsp.core.languages import Language
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span
from tests.engine.test_compat import CODE

OPENERS = (
    *("(", "[", "{", "((((", "[[[[", "{{{{", "([{", "<", "<<", "const a = [", "f(", "a[", "x = {", "fn(a, {", "if ("),
    *("for (int i", '"', "'", "`", '"""', "'''", '"${', "`${", "`${`${", "#{", '"#{', "f'{", 'f"{a["', '$"{', '@"'),
    *('$@"{', 'R"(', 'r#"', "%w[", "%q(", "/*", "/**", "//", "#", "--[[", "--[==[", "[[", "[==[", "=begin\n", "<!--"),
    *("<%", "<?php", "?>", "<<EOF\n", "<<~X\n", "<<<X\n", "<div", "<div>", "</", "<a b={", "<>", "=> {", "=>"),
    *("async () => {", "class A {", "class A:", "def f(", "def f(a=[", "lambda x: (", "match x {"),
    *("switch (x) { case", "do {", "do |x|", "begin", "function (", "function f()", "template <", "#if A"),
    *("#define X(", "\\\n", "@", "@a(", "::", "->", "?.", "? :", "...", ";;", "case x)", "$(", "$((", "${a["),
    *("until", "try {", "catch (", "else", "}", ")", "]", "end", "*/", "\x00", "\ufeff", "é🦀", "\r", "\u2028"),
    *("\x0c"),
    *("a" * 300, "(" * 200, "{" * 200, "[" * 200, "-" * 200, "if a: " * 50),
)
SLOWER = 3  # times as slow as the processor that the limit is meant for may be the one that runs the tests
SIZES = (500, 4_000, 20_000, excerpt.LONG_CHARS + 5_000)


@dataclass(frozen=True)
class Case:
    """A text, and the earlier one that an edit at the offset made it of."""

    before: str
    text: str
    offset: int


def cases(language: Language, seed: int) -> Iterator[Case]:
    """Yield cases of one language without end."""
    draw = random.Random(f"{language.name} {seed}")
    bases = [base(language, size, draw) for size in SIZES]
    while True:
        before = draw.choices(bases, (4, 4, 2, 1))[0]
        start = draw.choice([draw.randrange(len(before)), before.find("\n", draw.randrange(len(before))) % len(before)])
        end = start + draw.choice((0, 0, 0, 1, 30, 400))
        pieces = [draw.choice(OPENERS) for _ in range(draw.choice((1, 1, 1, 2, 3, 5)))]
        new = draw.choice(("", " ", "\n", "\n    ")).join(pieces)
        yield Case(before, f"{before[:start]}{new}{before[end:]}", start + len(new))


def base(language: Language, size: int, draw: random.Random) -> str:
    """Return a text of about that many characters that is like the language's code."""
    example = textwrap.dedent(CODE[language.name]).strip("\n").replace("$0", "1") + "\n\n"
    text = f"{language.tag}\n" if language.tag else ""
    while len(text) < size:
        # Other numbers and names, because a parser reuses what it has seen.
        text += example.replace("1", str(draw.randrange(1000))).replace("x", f"x{draw.randrange(100)}")
    return text


class Counts:
    """How many parses there were, and how near they came to the limit."""

    def __init__(self) -> None:
        self.n_parses = self.n_over = 0
        self.worst = 0.0
        self.slowest = ""

    def parse(
        self, text: str, language: Language, earlier: Syntax | None = None, parts: tuple[Span, ...] | None = None
    ) -> Syntax | None:
        start, tree = time.thread_time(), None
        self.n_parses += 1
        try:
            tree = syntax.parse(text, language, earlier, parts)
        except syntax.ParseLimitError:
            self.n_over += 1
        share = (time.thread_time() - start) / syntax.limit_s(tree.offsets.source if tree else text.encode(errors="replace"))
        if share > self.worst:
            self.worst, self.slowest = share, text
        return tree


def check(name: str, n: int, seed: int = 0) -> Counts:
    """Parse n texts of a language as the server does: as a whole, the parts near the cursor, and after an edit."""
    language, counts = languages.row(name), Counts()
    wholes: dict[str, Syntax | None] = {}
    for case, _ in zip(cases(language, seed), range(n), strict=False):
        if case.before not in wholes:
            wholes[case.before] = counts.parse(case.before, language)
        before = wholes[case.before]
        if before is None or len(case.text) < excerpt.LONG_CHARS:
            counts.parse(case.text, language, before)
        else:
            offsets, lines = positions.byte_offsets(case.before), positions.lines(case.before)
            parts = excerpt.parts(before.tree, offsets, lines, min(case.offset, len(case.before)))
            near = counts.parse(case.before, language, parts=parts)
            after = counts.parse(case.text, language, near) if near else None
            if after is not None:
                counts.parse(case.text, language, parts=after.parts)
    return counts


def main(name: str, n: int, seed: int = 0) -> None:
    """Print the counts of a language, or of all together."""
    limit_s = syntax.limit_s
    syntax.limit_s = lambda source: SLOWER * limit_s(source)
    names = [language.name for language in languages.TABLE] if name == "all" else [name]
    results = [check(each, n, seed) for each in names]
    n_parses, n_over = sum(one.n_parses for one in results), sum(one.n_over for one in results)
    print(f"{name}: {n_parses} parses, {n_over} over the limit, at most {max(one.worst for one in results):.2f} of it")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
