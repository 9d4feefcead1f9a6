r"""Find the comments and strings of a text without a syntax tree, by the delimiters of its language (`lexing.toml`).

This takes time linear in the text's length, whatever the text is, so that no text can block an editor. The lexers of
highlighting libraries do not: many need seconds for 5,000 characters of the wrong kind, and nothing can interrupt a regular
expression.

A delimiter of the table has these fields. `open`, `close`, `escape` and `code` are regular expressions.

    kind       "comment"; "string", the default; "verbatim": text of another language, such as a code block in a README; or
               "code": what only looks like a delimiter, such as `\%` in TeX
    open       matches where the literal begins; its group `mark` is the delimiter, if the match begins earlier
    close      matches where it ends; `{word}` is what the group `word` of `open` matched. Without it, it ends with its line
    escape     matches what does not end it
    code       begins code within a string, up to what closes the end of this match, such as a bracket
    embeds     the language of the text between `open` and `close`, or of the code in a string
    whole      `open` matches all of the literal
    multiline  a string may have several lines; anything else with a `close` may
    nested     matches what begins another literal within, which ends like this one
    indented   the literal goes on while lines are indented more than it is

An expression that fails after a long match would make the time quadratic. Where one may fail, its repetitions are bounded.

A language may have strings that the table lacks, and a comment in one is none. So a FILL comment counts only where no quote
suggests such a string (`sure_comments`): a comment that is not filled costs little, a changed string may go unnoticed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import resources
from itertools import takewhile
from typing import Literal

from dg_lsp.core.values import Span, joined

Kind = Literal["comment", "string", "verbatim", "code"]
End = Literal["delimiter", "line", "text"]

_FLAGS = re.MULTILINE | re.DOTALL
_LONE_RETURN = re.compile("\r(?!\n)")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_CODE_CLOSERS = {**_CLOSERS, "<%": "%>", "<?": "?>", "<#": ">", "$<": ">", "`": "`"}


@dataclass(frozen=True, slots=True)
class Token:
    """A comment, a string or verbatim text. A string with code in it is several tokens, one for each part around the code.

    `inner` is the text between the delimiters. `ends` says what ended it. If no delimiter did, it continues with what is typed
    at its end.
    """

    kind: Kind
    span: Span
    inner: Span
    ends: End


@dataclass(frozen=True, slots=True)
class Delimiter:
    """How a literal begins and ends; see above."""

    open: str
    kind: Kind = "string"
    close: str = ""
    escape: str = ""
    code: str = ""
    embeds: str = ""
    whole: bool = False
    multiline: bool = False
    nested: str = ""
    indented: bool = False

    @property
    def ends_with_line(self) -> bool:
        """Whether the literal ends with its line at the latest."""
        return not self.close or (self.kind == "string" and not self.multiline)

    @property
    def is_regular(self) -> bool:
        """Whether a regular expression can match all of the literal."""
        return not (self.nested or self.code or self.embeds or self.indented)

    @property
    def expression(self) -> str:
        """A regular expression for the literal, with its text as the group `inner`; for its beginning if it is not regular."""
        if self.whole or not self.is_regular:
            return self.open
        if not self.close:
            return rf"{self.open}(?P<inner>[^\r\n]*)"
        close, char = self.close.replace("{word}", "(?P=word)"), r"[^\r\n]" if self.ends_with_line else "."
        if self.escape:
            # A set of characters is matched faster.
            other = rf"[^{close}{char[2:-1]}]" if len(close) == 1 else f"(?!{close}){char}"
            return rf"{self.open}(?P<inner>(?:{self.escape}|{other})*)(?:{close})?"
        return rf"{self.open}(?P<inner>{char}*?)(?:{close}|(?!{char}))"


@dataclass(frozen=True, eq=False)
class Lexer:
    """The delimiters of a language. Of several that match at an offset, the first counts.

    `sign` is a regular expression for text of this language, where other languages have files of the same name. `is_data`:
    files of this kind hold data, or a program writes them. `quotes` are the characters that may begin a string, where no
    delimiter has them; in `prose`, such a string ends with its line. In strings that begin with one of `variables`, a text
    that `variable` matches is a name. In code in a string, what `format` matches from its bracket on is text again.
    """

    delimiters: tuple[Delimiter, ...]
    sign: str = ""
    is_data: bool = False
    quotes: str = "\"'`"
    prose: bool = False
    variables: str = ""
    variable: str = r"(?<!\\)\$[^\W\d]\w*"
    format: str = ""

    @cached_property
    def code(self) -> re.Pattern[str]:
        """A pattern for what matters in code: literals, that of the fourth delimiter as the group `_3`."""
        return re.compile(self._literals or "(?!)", _FLAGS)

    @cached_property
    def code_in_string(self) -> dict[str, re.Pattern[str]]:
        """By a bracket, a pattern for what matters in code within a string: also the line's end, and brackets of this kind."""
        start = f"{self._literals}|".lstrip("|")
        return {
            left: re.compile(rf"{start}(?P<line>\n)|(?P<right>{re.escape(right)})|(?P<left>{re.escape(left)})", _FLAGS)
            for left, right in _CODE_CLOSERS.items()
        }

    @cached_property
    def _literals(self) -> str:
        # The same group may be in several delimiters, but only once in an expression.
        expressions = (re.sub(r"\(\?P([<=])(\w+)", rf"(?P\1\2_{n}", each.expression) for n, each in enumerate(self.delimiters))
        return "|".join(f"(?P<_{n}>{each})" for n, each in enumerate(expressions))


@lru_cache(maxsize=1024)
def _inside(delimiter: Delimiter, word: str) -> re.Pattern[str]:
    """Return a pattern for what matters in a literal that is not regular; `word` is the group of `open`."""
    parts = {
        "escape": delimiter.escape,
        "nested": delimiter.nested,
        "close": delimiter.close,
        "code": delimiter.code,
        "line": r"\r?\n" if delimiter.ends_with_line else "",
    }
    pattern = "|".join(f"(?P<{name}>{part})" for name, part in parts.items() if part)
    return re.compile(pattern.replace("{word}", re.escape(word)), _FLAGS)


@lru_cache(maxsize=64)
def _indented(column: int) -> re.Pattern[str]:
    """Return a pattern for the following lines that begin right of a column, and blank ones between them."""
    return re.compile(rf"(?:(?:\n[ \t\r]*+(?=\n))*+\n[ \t]{{{column + 1},}}\S[^\n]*)*")


@dataclass(slots=True)
class _Frame:
    """Code in a string: its delimiter, `word` and depth; the code's lexer, and how many more of its first bracket are open."""

    delimiter: Delimiter
    word: str
    depth: int
    lexer: Lexer
    pattern: re.Pattern[str]
    n_open: int = 0


def tokens(text: str, lexer: Lexer, at: int = 0, end: int | None = None) -> Iterator[Token]:
    """Yield the literals between two offsets in order. The text is code at the first offset."""
    text = _LONE_RETURN.sub("\n", text) if "\r" in text else text
    end = len(text) if end is None else end
    frames: list[_Frame] = []
    while match := (frames[-1].pattern if frames else lexer.code).search(text, at, end):
        at, what = match.end(), match.lastgroup or ""
        if what == "line":
            # An unfinished expression of a template does not turn the rest of the file into code.
            while frames and (frames[-1].delimiter.ends_with_line or frames[-1].delimiter.embeds):
                frames.pop()
            continue
        if what == "left" or (what == "right" and frames[-1].n_open):
            frames[-1].n_open += 1 if what == "left" else -1
            continue
        if what == "right":
            frame = frames.pop()
            delimiter, word, start, depth = frame.delimiter, frame.word, match.start(), frame.depth
        else:
            delimiter = (frames[-1].lexer if frames else lexer).delimiters[int(what[1:])]
            start, depth = match.start(f"mark{what}" if "(?P<mark>" in delimiter.open else 0), 1
            word = (match[f"word{what}"] or "") if "(?P<word>" in delimiter.open else ""
        if delimiter.is_regular:
            inner = match.span(0 if delimiter.whole else f"inner{what}")
            ends: End = "delimiter" if delimiter.whole or inner[1] < at else "line" if delimiter.ends_with_line else "text"
            token, bracket = Token(delimiter.kind, Span(start, at), Span(*inner), ends), ""
        else:
            token, bracket, depth = _read(text, delimiter, word, start, at, end, depth)
        if delimiter.embeds and not delimiter.code:
            yield from tokens(text, named(delimiter.embeds), token.inner.start, token.inner.end)
        else:
            yield token
        if bracket:
            inside = named(delimiter.embeds) if delimiter.embeds else frames[-1].lexer if frames else lexer
            frames.append(_Frame(delimiter, word, depth, inside, inside.code_in_string[bracket]))
        at = token.span.end


def _read(text: str, delimiter: Delimiter, word: str, start: int, at: int, end: int, depth: int) -> tuple[Token, str, int]:
    """Return the literal that starts at `start`, its delimiter ending at `at`; the bracket of code where it ends; its depth.

    The depth counts the literals of its kind that are open, itself included.
    """
    inner = at
    if delimiter.indented:
        column, line_end = start - text.rfind("\n", 0, start) - 1, text.find("\n", at, end)
        lines = _indented(column).match(text, line_end, end) if line_end >= 0 else None
        at = lines.end() if lines else end
        at -= text.endswith("\r", start, at)
        return Token(delimiter.kind, Span(start, at), Span(inner, at), "line"), "", depth
    while found := _inside(delimiter, word).search(text, at, end):
        at, what = found.end(), found.lastgroup
        depth += {"nested": 1, "close": -1}.get(what or "", 0)
        if what in ("line", "code") or not depth:
            stop = found.start() if what == "line" else at
            ends: End = "line" if what == "line" else "delimiter"
            token = Token(delimiter.kind, Span(start, stop), Span(inner, found.start()), ends)
            bracket = next((each for each in _CODE_CLOSERS if what == "code" and found[0].endswith(each)), "")
            return token, bracket, depth
    ends = "line" if delimiter.ends_with_line else "text"
    return Token(delimiter.kind, Span(start, end), Span(inner, end), ends), "", depth


# --- The table

# How many characters are searched for the signs of a language.
_SIGN_CHARS = 20_000


@cache
def _table() -> tuple[dict[str, Lexer], dict[str, tuple[Lexer, ...]]]:
    """Return the lexers by the names of languages and interpreters, and by whole names of files and their endings."""
    table = tomllib.loads((resources.files("dg_lsp.core") / "lexing.toml").read_text(encoding="utf-8"))
    delimiters = {name: Delimiter(**row) for name, row in table["delimiters"].items()}
    by_name: dict[str, Lexer] = {}
    by_file: dict[str, tuple[Lexer, ...]] = {}
    for name, row in table["languages"].items():
        fields = {
            name: row[name] for name in ("sign", "is_data", "quotes", "prose", "variables", "variable", "format") if name in row
        }
        literals = (each for name in row["literals"] for each in table["groups"].get(name, [name]))
        lexer = Lexer(tuple(delimiters[each] for each in literals), **fields)
        by_name |= dict.fromkeys([name, *f"{row.get('ids', '')} {row.get('interpreters', '')}".split()], lexer)
        by_file |= {key: (*by_file.get(key, ()), lexer) for key in row.get("files", "").split()}
    return by_name, by_file


def named(*names: str) -> Lexer:
    """Return the lexer of the first of these languages that the table has, or one that knows only quotes."""
    by_name, _ = _table()
    return next((by_name[name] for name in names if name in by_name), by_name[""])


def for_file(name: str, text: str = "", language_id: str = "", interpreter: str = "") -> Lexer | None:
    """Return the lexer of a file by its editor's name of the language, else its name, else its interpreter, or None.

    `name` may be a whole path. It decides where the editor's name is that of data: an editor may call `deno.json`, which has
    comments, JSON. If several languages have files of that name, the signs in the text decide.
    """
    by_name, by_file = _table()
    by_id = by_name.get(language_id.lower()) if language_id else None
    if by_id and not by_id.is_data:
        return by_id
    *_, folder, base = ("", *re.split(r"[/\\]", name))
    endings = [base[at:] for at, char in enumerate(base) if char in ".-"]
    # As in `Dockerfile.dev` and `.env.local`.
    stem = base[: base.find(".", 1)] if "." in base[1:] else ""
    # As in `.vscode/tasks.json`, and in `tsconfig.app.json` and `requirements-dev.txt`.
    kinds = (f"{folder}/{endings[-1]}", base[0] + re.split(r"[.-]", base[1:])[0] + endings[-1]) if endings else ()
    keys = (key for part in (base, *kinds, *endings, stem) if part for key in (part, part.lower()))
    likely = next((by_file[key] for key in keys if key in by_file), ())
    if len(likely) > 1:
        head = text[:_SIGN_CHARS].replace("\r", "\n")
        signed = [lexer for lexer in likely if lexer.sign and re.search(lexer.sign, head, re.MULTILINE)]
        likely = (*signed, *(lexer for lexer in likely if not lexer.sign), *likely)
    return likely[0] if likely else by_id or (by_name.get(interpreter.lower()) if interpreter else None)


# --- Comments and the cursor

# How far back a cursor's literal may begin: reading a whole long file at each suggestion would be slow.
_NEAR_CHARS = 100_000
_NAME_CHARS = 200


def comments(text: str, lexer: Lexer, at: int = 0, end: int | None = None) -> Iterator[Token]:
    """Yield the comments between two offsets in order; see `tokens`."""
    return (token for token in tokens(text, lexer, at, end) if token.kind == "comment")


# A quote that is no apostrophe; the beginning of a here document; and a line that may end one.
_QUOTE = re.compile(r"""\n|["`]|(?<!\w)'|'(?!\w)""")
_HERE = re.compile(
    r"""(?:<<<?[-~]?|@\(|:to)(?:[/("'`]|[ \t]*+[/("'`]|(?:[ \t]*+(?:trim[ \t]+)?(?=[A-Z])))?(([^\W\d]\w*)[\w.-]*)"""
)
_CONTINUES = ("\\", "^", "\\\r", "^\r")  # at the end of a line, which the next one continues
_HERE_ENDS = re.compile(r"^[ \t|-]*([^\W\d][\w.-]*)[ \t\r;)]*$", re.MULTILINE)


def sure_comments(text: str, lexer: Lexer) -> Iterator[Token]:
    """Yield the comments that no string contains, as far as the text tells of strings that the table lacks.

    A comment is left out behind an odd number of quotes of a kind and in a here document; one that ends with its line also if
    the line above continues there, if it has an odd number of quotes, closes a bracket that it did not open, or ends like a
    pattern that began in its line, as in `/a # b/`.
    """
    text = _LONE_RETURN.sub("\n", text) if "\r" in text else text
    ends = {match[1]: match.start() for match in _HERE_ENDS.finditer(text)}
    # The word of `<<~A.strip` is `A`, that of `<<A.B` all of it.
    here = ((match.end(), ends.get(match[1], ends.get(match[2], 0))) for match in _HERE.finditer(text))
    heredocs = list(reversed(joined(Span(start, end) for start, end in here if end > start)))
    in_text, in_line, at = set[str](), set[str](), 0
    for token in tokens(text, lexer):
        for quote in _QUOTE.findall(text, at, token.span.start):
            if quote == "\n":
                in_line.clear()
            elif quote in lexer.quotes:
                in_text ^= {quote}
                in_line ^= {quote}
        at, is_line = token.span.end, token.ends == "line"
        while heredocs and heredocs[-1].end < at:
            heredocs.pop()
        if token.kind == "comment":
            is_open = in_line or (in_text and not lexer.prose) or (heredocs and heredocs[-1].start < at)
            if not (is_open or (is_line and _may_be_code(text, token))):
                yield token
        if "\n" in text[token.span.start : at]:
            in_line.clear()
        quote = text[token.inner.start - 1 : token.inner.start]
        if token.kind == "string" and is_line and quote in lexer.quotes:
            in_text ^= {quote}


def _may_be_code(text: str, comment: Token) -> bool:
    """Return whether a comment continues the line above, or closes a bracket, a quote or a pattern that it did not open."""
    inner, line = text[comment.inner.start : comment.inner.end], text.rfind("\n", 0, comment.span.start) + 1
    pattern = re.search(r"([|/$])#*\s*\Z", inner)
    return (
        text.endswith(_CONTINUES, 0, max(0, line - 1))
        or (pattern is not None and pattern[1] in text[line : comment.span.start])
        or len([quote for quote in _QUOTE.findall(inner) if quote != "\n"]) % 2 == 1
        or any(inner.count(right) > inner.count(left) for left, right in _CLOSERS.items())
    )


def far_before(text: str, offset: int) -> int:
    """Return the start of a line far before the offset, where the text is taken for code."""
    return text.rfind("\n", 0, max(0, offset - _NEAR_CHARS)) + 1


def kind_at(text: str, offset: int, lexer: Lexer, begin: int | None = None) -> Kind:
    """Return what text at an offset belongs to: a comment or string that is open there, verbatim text, or code.

    At the offset `begin`, the text is known to be code.
    """
    begin = far_before(text, offset) if begin is None else begin
    before = list(takewhile(lambda token: token.span.start < offset, tokens(text, lexer, begin)))
    last = max(before, key=lambda token: token.span, default=None)
    if last is None:
        return "code"
    near = text[max(last.span.start, offset - _NAME_CHARS) : offset]
    if not (offset < last.span.end or (offset == last.span.end and last.ends != "delimiter")):
        # The code before a format may have strings, as in `{row['name']:>9}`.
        brackets = (each.span.end - 1 for each in before if each.kind == "string" and each.span.end > offset - _NAME_CHARS)
        is_text = lexer.format and any(re.fullmatch(lexer.format, text[bracket:offset]) for bracket in brackets)
        return "string" if is_text else "code"
    # The token of a string's part behind code begins with the bracket that closes the code.
    quote = text[last.inner.start - 1 : last.inner.start]
    is_name = last.kind == "string" and quote and quote in f"{lexer.variables}}})" and lexer.variables
    return "code" if is_name and re.search(rf"(?:{lexer.variable})\Z", near) else last.kind
