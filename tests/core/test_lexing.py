"""Comments and strings of languages without a grammar: FILL comments, the cursor's place, and texts that must not take long."""

from __future__ import annotations

import gc
import re
import time
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import holes, languages, lexing
from dg_lsp.core.values import Document, Hole
from dg_lsp.server import reasons
from tests import marked

# Sections of a file's name and its text, with the holes marked. A FILL without a mark is in a string, an example or the like.
FIXTURE = (Path(__file__).parents[2] / "fixtures/comments.txt").read_text("utf-8")
MARKERS = re.findall(r"(?ms)^==== (\S+) ====\n(.*?)(?=^====|\Z)", FIXTURE)


@pytest.mark.parametrize(("name", "text"), MARKERS, ids=lambda value: str(value)[:24])
def test_a_marker_is_a_whole_comment_outside_of_strings_and_examples(name: str, text: str) -> None:
    for line_end in ("\n", "\r\n", "\r"):
        _, expected = marked.holes(text.replace("\n", line_end), "")
        document = Document(f"file:///a/{name}", "", marked.holes(text.replace("\n", line_end), "")[0].text)
        found = holes.markers(document, None)
        assert marked.draw(document, found) == marked.draw(document, [Hole(span, "marker") for span in expected])


@pytest.mark.parametrize(
    "name",
    [
        *("a.json", "a.jsonl", "a.geojson", "a.ipynb", "a.csv", "a.tsv", "a.txt", "a.log", "a.diff", "a.patch", "a.min.css"),
        *("package-lock.json", "yarn.lock", "Cargo.lock", "pnpm-lock.yaml", "go.sum", "a.lock.hcl", "a.js.map", "a.snap"),
    ],
)
def test_data_has_no_markers_and_a_reason(name: str) -> None:
    text = "# FILL\n// FILL\n/* FILL */\n-- FILL\n; FILL\n<!-- FILL: a -->\n"
    document = Document(f"file:///a/{name}", "", text)
    assert holes.markers(document, None) == ()
    assert holes.unread(document).startswith("holds data")
    assert holes.unread(replace(document, text="x = FILLER\n")) == ""


def test_a_comment_that_may_be_in_a_string_is_left_alone_and_has_a_reason() -> None:
    document = Document("file:///a/a.kt", "", "val a = @ `b\n// FILL: c\n")
    assert holes.markers(document, None) == ()
    assert holes.unread(document).startswith("has FILL comments that may be part of a string")


@pytest.mark.parametrize(
    "text",
    [
        "`a\n$0`\n", "'a\n$0\nb'\n", "a = @('A')\n$0\nA\n", "x <<~eof\n$0\neof\n", "a \\\n$0\n", "a \\\r\n$0\r\n", "q{ $0 }\n",
        "/a $0/\n", "x << 'A-B'\n$0\nA-B\n", "x <<A.B\n$0\nA.B\n", "x <<~A.strip\n$0\nA\n", "'a $0'\n",
    ],
)  # fmt: skip
def test_a_string_that_the_table_lacks_keeps_its_text(text: str) -> None:
    document = Document("file:///a/a.zig", "", text.replace("$0", "// FILL: a"))
    assert holes.markers(document, None) == ()


@pytest.mark.parametrize("text", ["it's `a` << 'b'\n// FILL: it's (a)\n", "a;\n// FILL: list src/\n", "a() // FILL: b or |\n"])
def test_an_instruction_may_end_like_a_pattern_that_nothing_begins(text: str) -> None:
    assert len(holes.markers(Document("file:///a/a.zig", "", text), None)) == 1


def test_a_file_s_language_is_that_of_its_editor_then_of_its_name_then_of_its_first_line() -> None:
    def language(uri: str, text: str = "", language_id: str = "") -> lexing.Lexer | None:
        return languages.lexer(Document(uri, "", text, language_id=language_id))

    assert language("untitled:Untitled-1", language_id="kotlin") is lexing.named("kotlin")
    assert language("file:///a/b.txt", language_id="SQL") is lexing.named("sql")
    assert language("file:///a/b.kt", language_id="plaintext") is lexing.named("kotlin")
    assert language("file:///a/b.kt#cell") is lexing.named("kotlin")
    assert language("file:///a/B.KT") is lexing.named("kotlin")
    assert language("file:///a/b", "#!/usr/bin/env fish\n") is lexing.named("fish")
    assert language("file:///a/b", "#!/usr/bin/perl -w\n") is lexing.named("perl")
    assert language("file:///a/b.py", language_id="python") is lexing.named("python")
    # What an editor says of data is less than the name says.
    assert language("file:///a/deno.json", language_id="json") is lexing.named("jsonc")
    assert language("untitled:Untitled-1", language_id="json") is lexing.named("json")


@pytest.mark.parametrize("language", languages.TABLE, ids=lambda language: language.name)
def test_each_language_with_a_grammar_has_its_comments_in_the_table_too(language: languages.Language) -> None:
    blocks = [language.block_comment] if language.block_comment else []
    for opening, closing in (*((mark, "") for mark in language.line_comments), *blocks):
        text = f"{opening} a\n{closing}"
        (token,) = lexing.tokens(text, lexing.named(language.name))
        assert (token.kind, text[token.inner.start : token.inner.end].strip()) == ("comment", "a")


# Lines with a scope, the name of a file, and its text with `$0` for the cursor and `⏎` for the end of a line.
SCOPES = [
    (scope.strip(), *rest.split(" ", 1))
    for line in (Path(__file__).parents[2] / "fixtures/scopes.txt").read_text("utf-8").splitlines()
    for scope, rest in [(line[:7], line[8:])]
]


@pytest.mark.parametrize(("scope", "name", "text"), SCOPES, ids=lambda value: value[:24])
def test_the_cursor_s_place_in_a_language_without_a_grammar(scope: str, name: str, text: str) -> None:
    """Say whether the cursor is in a comment, in a string or in code, as far as a text that is typed can say."""
    for line_end in ("\n", "\r\n", "\r"):
        head, _, tail = text.replace("⏎", line_end).rpartition("$0")
        offset, document = len(head), Document(f"file:///a/{name}", "", head + tail)
        assert reasons.scope_at(document, None, offset) == scope


def test_each_delimiter_has_one_name_and_a_language() -> None:
    table = tomllib.loads((Path(lexing.__file__).parent / "lexing.toml").read_text("utf-8"))
    rows = [lexing.Delimiter(**row) for row in table["delimiters"].values()]
    assert len(set(rows)) == len(rows)
    names = [
        name for each in (*table["languages"].values(), {"literals": table["groups"]["page"]}) for name in each["literals"]
    ]
    assert set(names) == {*table["delimiters"], *table["groups"]}


LEXERS = list(dict.fromkeys(lexing._table()[0].values()))
PIECES = [
    "/*", "*/", "//", "(*", "*)", "{-", "-}", "<!--", "-->", "{#", "#}", "{{!--", "--}}", "#|", "|#", "--[[", "]]", "#=",
    "=#", "#[", "<#", "#>", "/+", "/-", "-/", '"', "'", '"""', "'''", "`", "```\n", "~~~", "\\", "${", "#{", "\\(", "$(", "}",
    ")", "{", "(", '@"\n', '#"', 'r"(', "<<A\n", "<<~'B'\n", "A\n", "=begin\n", "=end\n", "=cut\n", "%{\n", "%}\n", "~s(",
    "{|", "|}", "[[", "$/", "///", "0'", "<script>", "</script", "<script ", "<style>", "---\n", "key: |\n", "- |\n", "  a\n",
    "    a\n", "\n\n", "::\n", ".. a::\n", ".. a\n", "-#", "#", ";", "%", "!", "--", '"a', "='", '\\"', "\\verb|",
    "\\begin{minted}", "{%raw%}", '{{"', "url(", "a://", "#+begin_a\n", "rem ", " ", "- ", "=/", "%(", "q{", "q ", "set a {",
    "key: a\n", "\\py[", "\\py{a}", ":a\n", "a.\n", "[source]\n", "[a]\n--\n", "define\n", "$$", "#<<", "e'", "q'",
    "{'", "|||\n", "[r|", "[", "- a\n", "&a ", "{%#", "{/*", "(;", "_by_lua_block {", "@(", "@{[", "qq{", "%q(",
    "%{", "~S", 'f"', '$"', "#{", "\\#(", "}", "<<-A\n",
    ' :a="', " on='", '="', "={{", "{%", "<%=", "<#if ", "@a(", "$<", " style='", "println!(", "$'", "%>",
    "<script type='a'>", "<script type=json ", "<a>", " <b>", "</a>", "AS $$", "DELIMITER $$\n", "“", "{{{{a}}}}",
    "<template lang='pug'>", "{%a|", "+++\n", '~H"', "@“\n", ': "${', "``", "``` ", "`\n",
]  # fmt: skip


@given(pieces=st.lists(st.sampled_from((*PIECES, "a", "\n", "\r\n", "\r")), max_size=20), lexer=st.sampled_from(LEXERS))
def test_tokens_are_in_order_and_hold_what_is_between_their_delimiters(pieces: list[str], lexer: lexing.Lexer) -> None:
    text, at = "".join(pieces), 0
    for token in lexing.tokens(text, lexer):
        assert at <= token.span.start < token.span.end <= len(text)
        assert token.span.holds(token.inner)
        at = token.span.end


# What begins a literal and never ends it, or looks so: beginning, repeated piece and end.
ENDLESS = [
    ("", "<<", ""), ("", " <<", ""), ("", "$x << 3; ", ""), ("", "<textarea ", ""), ("", "<title ", ""), ("", "<script ", ""),
    ("/* ", "*", ""), ("/+ ", "+", ""), ("(* ", "*", ""), ("(; ", ";", ""), ("/' ", "'", ""), ("<!-- ", "-", ""),
    ("{/* ", "*", ""), ('x="', '\\"', ""), ("a: ", "!: ", ""), ("\\begin{", "py", ""), ("", "-", "`"), ("", ".", "`"),
    ('x="', "@a", ""), ('x="', "{{ '", ""), ("", " x-", ""), ("", " :a='{", ""), ('set(A "', "$<", ""), ("", "println!(", ""),
    ("", "<script type=", ""), ("", " <a ", ""), ("<a>", "{", ""), ("", " <a>{", ""), ("", "AS $a$ ", ""), ("", "{{{{a", ""),
    ("", " a", ""), ("", "a-", ""),
]  # fmt: skip
CHARS = 20_000
LINEAR = 8  # times four times the text: between linear and quadratic
ENOUGH_S = 0.02  # shorter times are too uncertain to compare; a text of this size that takes less blocks nothing


@pytest.mark.parametrize(
    "lexer", [pytest.param(lexer, marks=() if number % 24 == 0 else pytest.mark.slow) for number, lexer in enumerate(LEXERS)]
)
def test_no_text_takes_more_than_linear_time(lexer: lexing.Lexer) -> None:
    pairs = (f"{left}{right}" for left, right in pairwise(PIECES))
    pieces = (*PIECES, *(pair for pair in pairs if lexer.code.search(pair)))
    for lead, piece, tail in (*ENDLESS, *(("", piece, "") for piece in pieces)):
        assert _growth(lexer, lead, piece, tail) < LINEAR, (lead, piece, tail)


@pytest.mark.parametrize(("lead", "piece", "tail"), ENDLESS)
@pytest.mark.parametrize("language", ["perl", "html", "c", "vim", "yaml", "latex", "asciidoc", "d", "ocaml"])
def test_a_literal_that_does_not_end_takes_linear_time(language: str, lead: str, piece: str, tail: str) -> None:
    assert _growth(lexing.named(language), lead, piece, tail) < LINEAR


def _growth(lexer: lexing.Lexer, lead: str, piece: str, tail: str) -> float:
    """Return how much longer four times as much text takes, by the fastest of up to ten tries; 0 for a short time.

    Linear time gives about 4, quadratic time about 16. Twice as much text would be too near: what no longer fits into a
    processor's cache takes longer, too, and two processes share one.
    """

    def seconds(n_chars: int) -> float:
        text = f"{lead}{piece * (n_chars // len(piece))}{tail}"
        gc.disable()  # what it takes depends on the objects of the whole process
        try:
            start = time.process_time()
            list(lexing.sure_comments(text, lexer))
            return time.process_time() - start
        finally:
            gc.enable()

    if (long := seconds(CHARS)) < ENOUGH_S:
        return 0
    short = seconds(CHARS // 4)
    for _ in range(9):
        if long < LINEAR * short:
            break
        # The shortest time has the least of other work on this machine.
        short, long = min(short, seconds(CHARS // 4)), min(long, seconds(CHARS))
    return long / short
