"""What requests of a file show of other files stays, so that what is encoded behind it stays valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dg_lsp.core.values import Hole, InfillRequest, Snippet, Span
from dg_lsp.engine.common.question import MOST_FILES, Heads

CURSOR = Hole(Span(0, 0), "cursor")
ALPHA_BETA = Snippet("other.py", "alpha beta", was_shown=True)


def asked(*names: str, path: str = "a.py", copied: str = "", before: Sequence[Snippet] = ()) -> InfillRequest:
    """A request that shows a paragraph with these names; what was shown `before` may stay."""
    paragraphs = (Snippet("other.py", " ".join(names)),) if names else ()
    copies = (Snippet("copied.py", copied, for_copying=True),) if copied else ()
    return InfillRequest("", "", (CURSOR,), path=path, related=(*paragraphs, *before, *copies))


def shown(heads: Heads, request: InfillRequest) -> Sequence[str]:
    return [snippet.text for snippet in heads.kept(request).related]


def test_what_is_shown_stays_until_more_than_half_of_the_names_would_be_new() -> None:
    heads, later = Heads(), Snippet("other.py", "alpha gamma delta", was_shown=True)
    assert shown(heads, asked("alpha", "beta")) == ["alpha beta"]
    assert shown(heads, asked("alpha", "gamma", before=[ALPHA_BETA])) == ["alpha beta"]
    assert shown(heads, asked(before=[ALPHA_BETA])) == ["alpha beta"]
    assert shown(heads, asked("alpha", "gamma", "delta", before=[ALPHA_BETA])) == ["alpha gamma delta"]
    assert shown(heads, asked("alpha", "beta", before=[later])) == ["alpha gamma delta"]
    assert shown(heads, asked("beta", "epsilon", before=[later])) == ["beta epsilon"]


def test_what_the_request_does_not_allow_any_more_does_not_stay() -> None:
    heads = Heads()
    for other in (asked("alpha", "gamma"), asked(), asked("alpha", before=[replace(ALPHA_BETA, path="moved.py")])):
        assert shown(heads, asked("alpha", "beta", before=[ALPHA_BETA])) == ["alpha beta"]
        assert "alpha beta" not in shown(heads, other)


def test_each_file_has_its_own_and_passages_to_copy_are_those_of_the_request() -> None:
    heads = Heads()
    assert shown(heads, asked("alpha", copied="one")) == ["alpha", "one"]
    assert shown(heads, asked("beta", path="b.py")) == ["beta"]
    assert shown(heads, asked("alpha", copied="two")) == ["alpha", "two"]


def test_only_so_many_files_are_remembered() -> None:
    heads = Heads()
    for number in range(MOST_FILES + 1):
        heads.kept(asked("alpha", "beta", path=f"{number}.py"))
    assert shown(heads, asked("alpha", "gamma", path="0.py", before=[ALPHA_BETA])) == ["alpha gamma"]
    assert shown(heads, asked("alpha", "gamma", path="9.py", before=[ALPHA_BETA])) == ["alpha beta"]
