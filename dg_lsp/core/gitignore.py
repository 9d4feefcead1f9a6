"""Match paths against the patterns of an ignore file as git does, in time that is bounded for every pattern.

Ignore files come with repositories that the user did not write, so no pattern may cause backtracking. The regular
expression of a path component commits to the first position where each part fits. That is correct because every part
has a fixed length.

Like git, it compares bytes: `?` and brackets mean one byte of a name's UTF-8. It also keeps brackets cheap, because
compiling `[Ā-￿]` takes a millisecond, and a file has room for thousands. Bytes are kept as characters up to U+00FF.

pathspec, the library for this, makes regular expressions that backtrack: with version 1.1.1, a pattern of eight `*a` takes 1.6
seconds on a name of 40 letters, and here 0.3 milliseconds. With RE2 it does not backtrack, but it refuses `[[:alpha:]]`, and
`[!a]` matches a slash.

This module reads no files. It differs from git in one place: a pattern that cannot have a meaning is an error, where
git silently ignores it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

# Real patterns have far fewer wildcards. `tests/hostile` has patterns that need this limit.
MAX_STARS = 32
# The number of rules to process between two calls of `tick`, where the caller checks its time limit.
N_PER_TICK = 64

Tick = Callable[[], None]


class PatternError(ValueError):
    """A pattern is invalid or too expensive. The message completes a sentence that begins with the file's name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One parsed pattern.

    Each of `components` is a literal name, a regular expression, or None for `**`. A pattern without a slash has one
    component.
    """

    components: tuple[str | re.Pattern[str] | None, ...]
    includes: bool
    folders_only: bool
    anchored: bool

    def matches(self, parts: Sequence[str], *, is_folder: bool) -> bool:
        """Return whether the pattern matches this exact path, given as bytes; a match of a parent folder does not count."""
        if self.folders_only and not is_folder:
            return False
        if not self.anchored:
            return _fits(self.components[0], parts[-1])
        return _all_fit(self.components, parts)


def parse(text: str, tick: Tick = lambda: None) -> tuple[Rule, ...]:
    """Return the rules in the text of an ignore file; raise PatternError for an invalid pattern.

    `tick` is called every `N_PER_TICK` lines, and may raise to stop the parsing.
    """
    rules = []
    for number, line in enumerate(_bytes(text.removeprefix("\ufeff")).split("\n")):
        if number % N_PER_TICK == 0:
            tick()
        if (rule := _rule(line.removesuffix("\r"))) is not None:
            rules.append(rule)
    return tuple(rules)


def verdict(rules: Sequence[Rule], parts: Sequence[str], *, is_folder: bool, tick: Tick = lambda: None) -> bool | None:
    """Return whether the last rule that matches this exact path ignores it, or None if no rule matches."""
    parts = [_bytes(part) for part in parts]
    for number, rule in enumerate(reversed(rules)):
        if number % N_PER_TICK == 0:
            tick()
        if rule.matches(parts, is_folder=is_folder):
            return not rule.includes
    return None


def covers(patterns: Iterable[str], path: str) -> bool:
    """Return whether a pattern matches the file or one of its parent folders.

    Raise PatternError for an invalid pattern, and for one that can never match, such as `vault[` or a comment: a list of
    patterns in a configuration has no reason to hold it, and what the user meant is unknown.
    """
    rules = _parsed(tuple(patterns))
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return any(verdict(rules, parts[: end + 1], is_folder=end < len(parts) - 1) for end in range(len(parts)))


@lru_cache(maxsize=64)
def _parsed(patterns: tuple[str, ...]) -> tuple[Rule, ...]:
    rules = []
    for pattern in filter(str.strip, patterns):
        if (rule := _rule(_bytes(pattern))) is None:
            raise PatternError(f"has the pattern {pattern}, which can never match")
        rules.append(rule)
    return tuple(rules)


def _bytes(text: str) -> str:
    """Return the text's UTF-8, each byte as the character of the same number."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("latin-1")  # half a character, which no file's name holds


def _rule(line: str) -> Rule | None:
    """Return the rule of one line; None for a comment, an empty line or a pattern that can never match."""
    if line.startswith("#"):
        return None
    # A backslash escapes the first of the trailing spaces.
    pattern = line.rstrip(" ")
    n_backslashes = len(pattern) - len(pattern.rstrip("\\"))
    pattern += " " if n_backslashes % 2 and len(pattern) < len(line) else ""
    includes = pattern.startswith("!")
    pattern = pattern.removeprefix("!")
    if not pattern:
        if includes:
            raise PatternError("has a ! without a pattern")
        return None
    folders_only = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    anchored = "/" in pattern
    try:
        components = _components(pattern.removeprefix("/"))
    except _NeverMatchesError:
        return None
    return Rule(components, includes, folders_only, anchored)


class _NeverMatchesError(Exception):
    """A pattern that git accepts but that can never match."""


# One token of a component: a text, and whether that text is a regular expression. None is a star.
_Token = tuple[str, bool] | None


def _components(pattern: str) -> tuple[str | re.Pattern[str] | None, ...]:
    components: list[list[_Token]] = [[]]
    at = n_stars = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "\\":
            if at == len(pattern):
                raise _NeverMatchesError
            char = pattern[at]
            at += 1
            components.append([]) if char == "/" else components[-1].append((char, False))
        elif char == "/":
            components.append([])
        elif char == "*":
            end = at
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            n_stars += 1
            # A run of stars means one star, unless `**` is a whole component.
            components[-1] += [None] * min(end - at + 1, 2)
            at = end
        elif char == "?":
            components[-1].append((".", True))
        elif char == "[":
            expression, at = _class(pattern, at)
            components[-1].append((expression, True))
        else:
            components[-1].append((char, False))
    if n_stars > MAX_STARS:
        raise PatternError(f"has a pattern with more than {MAX_STARS} wildcards")
    # Git compares these with the parts of a path, none of which is empty or a dot.
    if any(_literal(tokens) in ("", ".", "..") for tokens in components):
        raise _NeverMatchesError
    return tuple(map(_component, components))


def _literal(tokens: list[_Token]) -> str | None:
    """Return the name that a component means, or None for one with a wildcard."""
    names = [token[0] for token in tokens if token is not None and not token[1]]
    return "".join(names) if len(names) == len(tokens) else None


def _component(tokens: list[_Token]) -> str | re.Pattern[str] | None:
    if tokens == [None, None]:
        return None
    if (name := _literal(tokens)) is not None:
        return name
    pieces: list[str] = [""]
    for token in tokens:
        if token is None:
            pieces.append("")
        else:
            pieces[-1] += token[0] if token[1] else re.escape(token[0])
    first, *rest = pieces
    middle = "".join(f"(?>.*?{piece})" for piece in rest[:-1] if piece)
    return re.compile(first + (middle + ".*" + rest[-1] if rest else ""), re.DOTALL)


_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t-\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


def _class(pattern: str, at: int) -> tuple[str, int]:
    """Return the regular expression of the bracket that opened before `at`, and the offset after its end."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    items: list[str] = []
    previous = ""
    is_first = True
    while is_first or pattern[at : at + 1] != "]":
        is_first = False
        char, at = _char(pattern, at)
        if char == "[" and pattern[at - 1] == "[" and pattern[at : at + 1] == ":":
            end = pattern.find("]", at + 1)
            if end < 0:
                raise _NeverMatchesError
            if pattern[end - 1] == ":" and end - 1 > at:
                if (name := pattern[at + 1 : end - 1]) not in _POSIX:
                    raise _NeverMatchesError
                items.append(_POSIX[name])
                previous, at = "", end + 1
                continue
        if char == "-" and pattern[at - 1] == "-" and previous and pattern[at : at + 1] not in ("", "]"):
            last, at = _char(pattern, at)
            if last < previous:
                text = f"{previous}-{last}".encode("latin-1").decode("utf-8", "replace")
                raise PatternError(f"has a pattern with the range {text}, which is empty")
            items.append(f"{re.escape(previous)}-{re.escape(last)}")
            previous = ""
            continue
        items.append(re.escape(char))
        previous = char
    return f"[{'^' * negated}{''.join(items)}]", at + 1


def _char(pattern: str, at: int) -> tuple[str, int]:
    """Return the character at the offset inside a bracket, without a backslash before it, and the offset after it."""
    if pattern[at : at + 1] == "\\":
        at += 1
    if at >= len(pattern):
        raise _NeverMatchesError
    return pattern[at], at + 1


def _fits(component: str | re.Pattern[str] | None, name: str) -> bool:
    if component is None:
        return True
    return component == name if isinstance(component, str) else component.fullmatch(name) is not None


def _all_fit(components: Sequence[str | re.Pattern[str] | None], parts: Sequence[str]) -> bool:
    """Return whether the components match all parts. As in any wildcard match, only the last `**` can need another try."""
    at = part = 0
    retry: tuple[int, int] | None = None
    while part < len(parts):
        if at < len(components) and components[at] is None:
            # At the end, `**` matches at least one part. Elsewhere it also matches none.
            if at == len(components) - 1:
                return True
            at += 1
            retry = at, part
        elif at < len(components) and _fits(components[at], parts[part]):
            at += 1
            part += 1
        elif retry is not None:
            at, part = retry[0], retry[1] + 1
            retry = at, part
        else:
            return False
    return at == len(components)
