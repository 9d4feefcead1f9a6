"""Answers that are dropped though they may parse: with open holes, lost code, or merged names."""

from __future__ import annotations

import pytest

from dg_lsp.core import placeholders, polish, syntax
from dg_lsp.core.polish import Polished
from dg_lsp.core.values import Candidate, Document, Extent, Hole, HoleKind, Span, apply


def answered(
    text: str,
    answer: str,
    *,
    kind: HoleKind = "cursor",
    language: str = "python",
    extent: Extent = "line",
    is_file: bool = False,
    allow_shrink: bool = False,
) -> tuple[str, Polished]:
    """Return the text with the answer in its marked hole, and the result of polishing."""
    start, end = text.index("⟦"), text.index("⟧") - 1
    document = Document("file:///a.py", language, text.replace("⟦", "").replace("⟧", ""))
    head = document.text[:start].rpartition("\n")[2]
    hole = Hole(Span(start, end), kind, indent=head if not head.strip() else "", extent=extent)
    tree = syntax.of(document)
    result = polish.to_edits(Candidate((answer,)), (hole,), document, syntax=tree, is_file=is_file, allow_shrink=allow_shrink)
    return apply(document.text, result.edits), result


def check_refused(text: str, answer: str, reason: str, **how: object) -> None:
    _, result = answered(text, answer, **how)  # type: ignore[arg-type]
    assert (result.edits, result.dropped) == ((), reason)


def check_taken(text: str, answer: str, **how: object) -> None:
    text_after, result = answered(text, answer, **how)  # type: ignore[arg-type]
    assert result.dropped == ""
    assert text_after == text.split("⟦")[0] + answer + text.split("⟧")[1]


def test_an_answer_that_uses_an_unbound_name_is_refused_in_a_whole_file() -> None:
    check_refused("def f(x):\n    ⟦⟧\n", "return y", "uses a name that nothing binds", is_file=True)
    check_taken("def f(x):\n    ⟦⟧\n", "return x", is_file=True)
    check_taken("def f(x):\n    ⟦⟧\n", "return y")


def test_an_answer_that_ends_a_name_too_early_is_refused_in_a_whole_file() -> None:
    text = "def f(charset):\n    if c⟦⟧\n        pass\n"
    check_refused(text, ' in ("a", "b"):', "uses a name that nothing binds", is_file=True)
    check_taken(text, 'harset in ("a", "b"):', is_file=True)
    check_taken("def f(c):\n    if c⟦⟧\n        pass\n", ' in ("a", "b"):', is_file=True)
    check_taken("def f(c):\n    return ⟦⟧\n", '("a", c)', is_file=True)
    check_taken("def f(c):\n    c.lower⟦⟧\n", "()", is_file=True)
    check_taken("def f(c):\n    name⟦⟧\n", " = c", is_file=True)


def test_an_answer_with_a_doubtful_name_is_marked_where_the_language_cannot_tell() -> None:
    text = "function f(x) {\n  ⟦⟧\n}\n"
    _, result = answered(text, "return y;", language="javascript", is_file=True)
    assert result.edits
    assert result.unbound == ("y",)
    _, result = answered(text, "return x;", language="javascript", is_file=True)
    assert result.unbound == ()
    _, result = answered(text, "return y;", language="javascript")
    assert result.unbound == ()


@pytest.mark.parametrize(
    ("text", "answer", "language"),
    [
        ("⟦⟧for item in items:\n    f(item)\n", "# ", "python"),
        ("x = 1\n⟦⟧y = f(x)\n", "x = 2  # then ", "python"),
        ("⟦⟧let x = 1;\n", "// so ", "javascript"),
        ("f(⟦⟧x)\n", "a,  # b ", "python"),
        ("⟦⟧x := 1\n", "y := 2 // so ", "go"),
    ],
)
def test_a_comment_in_front_of_code_is_refused(text: str, answer: str, language: str) -> None:
    check_refused(text, answer, "turns the code after it into a comment", language=language)


def test_a_comment_is_accepted_where_no_code_follows() -> None:
    check_taken("x = 1⟦⟧\n", "  # one")
    check_taken("⟦⟧\nx = 1\n", "# one")
    check_taken("x = ⟦⟧ # one\n", "1")
    check_taken("# one ⟦⟧, two\n", "# and a half")
    check_taken("x = f(⟦⟧, b)\n", '"#"')
    check_taken("f(x⟦⟧)\n", ", b")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("def f():\n    ⟦⟧pass\n", "raise NotIm"),
        ("f(items)\nfor x in ⟦⟧items:\n    pass\n", "list_of"),
        ("f(count)\nx = 1 ⟦⟧count + 1\n", "+ n"),
        ("def f(c⟦⟧ount):\n    return count\n", "h"),
        ("x = first_c⟦⟧ount(items)\n", "h"),
        ("x = os.pa⟦⟧th\n", "tchedth"),
        ("x = os.pa⟦⟧th\n", "tched"),
        ("x = itertools.⟦⟧ms\n", "ite"),
        ("x = len⟦⟧gth\n", "(a)."),
    ],
)
def test_an_answer_that_runs_into_a_name_is_refused(text: str, answer: str) -> None:
    check_refused(text, answer, "merges with the name behind it")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("def f(first_count):\n    return ⟦⟧count\n", "first_"),
        ("import os\nos.path\nx = os.p⟦⟧th\n", "a"),
        ("x = n⟦⟧ + 1\n", "ew"),
        ("x = 'a⟦⟧b'\n", "c"),
    ],
)
def test_an_answer_may_run_into_a_known_name(text: str, answer: str) -> None:
    check_taken(text, answer)


def test_an_answer_may_complete_a_name() -> None:
    check_taken("f(items)\nfor x in it⟦⟧:\n    pass\n", "ems")
    check_taken("parse(x)\nparse⟦⟧\n", "r = 1")
    check_taken("f(items)\nx = f(it⟦⟧, y)\n", "ems")
    check_taken("x.strip()\ny = x.strip⟦⟧() + 1\n", "ped")
    check_taken("f(my_items)\nx = f(⟦⟧items, y)\n", "my_")
    check_taken("# a word⟦⟧ and more\n", "smith")
    check_taken("colr = 1\n# the col⟦⟧r of the text\n", "ou")
    check_taken("item = 1\nx = (item⟦⟧, y)\n", "_count")
    check_taken("f(items)\nx = f(it⟦⟧ms, y)\n", "e")
    check_taken("f(items)\nx = f(it⟦⟧ms, itms)\n", "e")
    check_taken("f(max_size)\nx = f(min_⟦⟧e, y)\n", "siz")
    check_taken("f(maxSize)\nx = f(min⟦⟧e, y)\n", "Siz")
    check_taken("def __exit__(self, exc⟦⟧e: type) -> None:\n    pass\n", "_typ")


@pytest.mark.parametrize("kind", ["body", "marker", "cursor"])
@pytest.mark.parametrize(
    ("answer", "language"),
    [("# FILL: sort the rows", "python"), ("x = 1  # FILL: the rest", "python"), ("// FILL", "javascript")],
)
def test_an_answer_with_a_fill_marker_is_refused(kind: HoleKind, answer: str, language: str) -> None:
    check_refused("⟦⟧\n", answer, "says nothing, or leaves a new hole", kind=kind, extent="block", language=language)


@pytest.mark.parametrize(
    ("answer", "language"),
    [
        ("# TODO: implement this\n    return None", "python"),
        ("# your code here\n    x = 1", "python"),
        ("# TODO\n    x = 1", "python"),
        ("# first\n    # then", "python"),
        ("return None  # TODO: implement", "python"),
        ("return # ... existing code ...", "python"),
        ("x = 1  # rest of the code here", "python"),
        ("return a  # XXX: implement properly", "python"),
        ("return None  # a placeholder for now", "python"),
        ("return None  # to be implemented", "python"),
        ("x = None  # TODO: compute x\n    return x", "python"),
        ("return ...", "python"),
        ('return "TODO"', "python"),
        ("return 'not implemented';", "javascript"),
        ('print("TODO")', "python"),
        ('console.log("TODO: sort them");', "javascript"),
    ],
)
def test_a_body_that_leaves_a_todo_is_refused(answer: str, language: str) -> None:
    text = "function f() {\n    ⟦⟧\n}\n" if language == "javascript" else "def f():\n    ⟦pass⟧\n"
    check_refused(text, answer, "says nothing, or leaves a new hole", kind="body", extent="block", language=language)


@pytest.mark.parametrize(
    ("text", "answer", "language"),
    [
        ("def f():\n    return ⟦⟧\n", "# ... existing code ...", "python"),
        ("def f():\n    return ⟦⟧\n", "None  # TODO: implement", "python"),
        ("def f():\n    return ⟦⟧\n", "0  # FIXME: count the rows", "python"),
        ("package a\n\nfunc f() int {\n\treturn ⟦⟧\n}\n", "0 // not implemented yet", "go"),
        ("const x = ⟦⟧;\n", "/* your code here */ 1", "javascript"),
        ("class A { int f() { return ⟦⟧; } }\n", "0 /* placeholder */", "java"),
    ],
)
def test_an_answer_that_says_that_code_is_missing_is_refused_at_a_cursor(text: str, answer: str, language: str) -> None:
    check_refused(text, answer, "says nothing, or leaves a new hole", language=language)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("x = 1\n⟦⟧\n", "y = 2  # ----"),
        ("x = 1\n⟦⟧\n", "items = []  # Todo items"),
        ("x = 1\n⟦⟧\n", 'y = "# TODO"'),
        ("x = 1\n⟦⟧\n", "# TODO: sort them"),
        ("x = ⟦⟧ # TODO: sort them\n", "1"),
        ("# TODO⟦⟧\n", ": implement"),
    ],
)
def test_an_answer_with_a_comment_that_stands_for_no_code_is_taken(text: str, answer: str) -> None:
    check_taken(text, answer)


def test_a_body_may_have_a_note_on_what_is_below() -> None:
    check_taken("def f(a):\n    ⟦pass⟧\n", 'return "TODO: sort them"', kind="body", extent="block")
    check_taken("def f(a):\n    ⟦pass⟧\n", 'return g("TODO")', kind="body", extent="block")
    check_taken("def f(a):\n    if a:\n        ⟦⟧\n", "return", extent="block")
    check_taken("def f(a):\n    ⟦pass⟧\n", "# TODO: sort them\n    return a", kind="body", extent="block")


def test_comments_alone_are_refused_where_a_block_belongs() -> None:
    reason = "says nothing, or leaves a new hole"
    check_refused("if x:\n    f()\nelse:\n    ⟦⟧\n", "# nothing more", reason, extent="block")
    check_refused("function f() {\n    ⟦⟧\n}\n", "/* sort\n       them */", reason, extent="block", language="javascript")
    check_taken("function f() {\n    ⟦⟧\n}\n", "/* sort */ g(); /* them */", extent="block", language="javascript")


@pytest.mark.parametrize(
    ("answer", "language", "text"),
    [
        ("pass", "ruby", "def f\n    ⟦raise NotImplementedError⟧\nend\n"),
        ("...", "ruby", "def f\n    ⟦raise NotImplementedError⟧\nend\n"),
        ("pass;", "javascript", "function f() {\n    ⟦;⟧\n}\n"),
        ("pass", "bash", "f() {\n    ⟦:⟧\n}\n"),
        ("throw new NotImplementedException();", "javascript", "function f() {\n    ⟦;⟧\n}\n"),
    ],
)
def test_a_placeholder_of_another_language_is_refused(answer: str, language: str, text: str) -> None:
    check_refused(text, answer, "says nothing, or leaves a new hole", kind="body", extent="block", language=language)


@pytest.mark.parametrize(
    ("text", "answer", "language"),
    [
        ("def f(a, b):\n    ⟦pass⟧\n", "def area(self):\n        return self.width", "python"),
        ("def f(a, b):\n    ⟦pass⟧\n", "# the sum\n    class A:\n        def g(self):\n            return 1", "python"),
        ("function f(a) {\n    ⟦;⟧\n}\n", "function g(a) {\n        return a;\n    }", "javascript"),
        ("local function f(a)\n    ⟦⟧\nend\n", "local function g(a)\n        return a\n    end", "lua"),
    ],
)
def test_a_body_that_only_defines_another_function_is_refused(text: str, answer: str, language: str) -> None:
    check_refused(text, answer, "says nothing, or leaves a new hole", kind="body", extent="block", language=language)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("def f(a):\n    ⟦pass⟧\n", "def g(b):\n        return a + b\n    return g"),
        ("def f(app):\n    ⟦pass⟧\n", '@app.route("/")\n    def index():\n        return ""'),
        ("class A:\n    ⟦pass⟧\n", "def g(self):\n        return 1"),
        ("def f(a):\n    ⟦pass⟧\n", "return lambda b: a + b"),
    ],
)
def test_a_definition_that_is_used_or_registered_is_taken(text: str, answer: str) -> None:
    check_taken(text, answer, kind="body", extent="block")


WORKING = "def f(count):\n    ⟦total = count + 1\n    return total⟧\n"


@pytest.mark.parametrize("answer", ["pass", "...", "raise NotImplementedError", "# TODO", '"""Return it."""', "pass\n    pass"])
def test_working_code_is_not_replaced_by_less_without_permission(answer: str) -> None:
    text_after, result = answered(WORKING, answer, kind="selection", extent="block")
    assert (result.edits, result.dropped, result.shrinks) == ((), "replaces working code by less", True)
    text_after, result = answered(WORKING, answer, kind="selection", extent="block", allow_shrink=True)
    if answer not in ("# TODO",):  # which leaves the function without a body
        assert result.dropped == ""
        assert result.shrinks
        assert answer in text_after


def test_a_selection_may_be_deleted_with_permission() -> None:
    text = "x = 1\n⟦y = 2⟧\n"
    check_refused(text, "", "is blank", kind="selection", extent="block")
    text_after, result = answered(text, "", kind="selection", extent="block", allow_shrink=True)
    assert (text_after, result.shrinks) == ("x = 1\n\n", True)


def test_code_that_stays_code_does_not_shrink() -> None:
    _, result = answered(WORKING, "return count + 1", kind="selection", extent="block")
    assert (result.dropped, result.shrinks) == ("", False)
    check_refused("def f():\n    ⟦...⟧\n", "pass", "says nothing, or leaves a new hole", kind="selection", extent="block")


@pytest.mark.parametrize(
    ("before", "after", "language", "expected"),
    [
        ("return 1", "pass", "python", True),
        ("return 1", "", "python", True),
        ("x = 1\n    return x", "# later", "python", True),
        ("return 1", "return 2", "python", False),
        ("pass", "...", "python", False),
        ("# only words", "", "python", False),
        ("", "pass", "python", False),
        ("return 1;", 'throw new Error("not implemented");', "javascript", True),
        ("return 1;", "// TODO", "typescript", True),
        ("x := 1", 'panic("not implemented")', "go", True),
        ("let x = 1;", "todo!()", "rust", True),
        ("return 1;", "throw new UnsupportedOperationException();", "java", True),
        ("x = 1", "raise NotImplementedError", "ruby", True),
        ("return 1;", ";", "c", True),
        ("return 1\nend", "end\n    ...", "lua", True),
        ("x = 1;\n}", "// later\n}", "javascript", True),
        ("x = 1", "pass", "ruby", True),
        ("x = 1", "# later\n...", "ruby", True),
        ("x = 1", "pass", "", True),
        ("x = 1\nif x:\n    f(x)", "x = 1\nif x:\n    pass", "python", True),
        ("g\n\nf() {", "h\n\nunimplemented!()\npass", "bash", True),
        ("x = f()", "try:\n    x = f()\nexcept E:\n    pass", "python", False),
        ("x = f()", "class E(Exception):\n    pass", "python", False),
        ("def f():\n    pass\nx = 1", "def f():\n    pass\nx = 2", "python", False),
        ("$x = 1;", "// TODO", "php", True),
        # A placeholder of another language behind brackets, and one in a comment that the code below closes.
        ("f(x);\n}", '} panic("not implemented")', "typescript", True),
        ("for (int n = 0; n < 3; n++)", '{\n    error("not implemented")', "csharp", True),
        ("throw new RangeError(x);\n}", "}\nraise NotImplementedError\n}\n\n/** Return it.\nf(x)", "javascript", True),
        # A placeholder that another one or the end of a block follows.
        ("class Cart\n  attr_reader :total", "pass   end", "ruby", True),
        ('require "set"\n\nclass Cart', 'throw new Error("not implemented"); end', "ruby", True),
        ("add 3 2", "raise NotImplementedError ...", "bash", True),
        # Comments of another language.
        ("end\n  return self.total\nend", "/* later */\nthrow new NotImplementedException();", "lua", True),
        ("largest() {\n    echo 1", 'panic("not implemented")\n/* FILL */\n...', "bash", True),
        ("add 3 2\nlargest 1 2", "#!/usr/bin/env bash\n    pass\n/* not closed", "bash", True),
        ("f(x);\n}", "} g(x);", "typescript", False),
        ("f x", "/* once */ g x", "lua", False),
        ("f(x);", "/* once */ g(x);", "c", False),
        ("some code", "", "", True),
        ("some code", "other", "", False),
    ],
)
def test_shrinking_is_detected_from_the_texts_alone(before: str, after: str, language: str, expected: bool) -> None:
    assert placeholders.shrinks(before, after, language) is expected
