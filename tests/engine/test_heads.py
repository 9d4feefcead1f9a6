"""What requests of a file show of other files stays, so that what is encoded behind it stays valid."""

from __future__ import annotations

from collections.abc import Sequence

from dg_lsp.core.values import Hole, InfillRequest, Snippet, Span
from dg_lsp.engine.common.question import MOST_FILES, Heads

CURSOR = Hole(Span(0, 0), "cursor")


def asked(*names: str, path: str = "a.py", copied: str = "") -> InfillRequest:
    """A request that shows a paragraph with these names."""
    copies = (Snippet("copied.py", copied, for_copying=True),) if copied else ()
    return InfillRequest("", "", (CURSOR,), path=path, related=(Snippet("other.py", " ".join(names)), *copies))


def shown(heads: Heads, request: InfillRequest) -> Sequence[str]:
    return [snippet.text for snippet in heads.kept(request).related]


def test_what_is_shown_stays_until_more_than_half_of_the_names_would_be_new() -> None:
    heads = Heads()
    assert shown(heads, asked("alpha", "beta")) == ["alpha beta"]
    assert shown(heads, asked("alpha", "gamma")) == ["alpha beta"]
    assert shown(heads, asked("alpha", "gamma", "delta")) == ["alpha gamma delta"]
    assert shown(heads, asked("alpha", "beta")) == ["alpha gamma delta"]
    assert shown(heads, asked("beta", "epsilon")) == ["beta epsilon"]


def test_each_file_has_its_own_and_passages_to_copy_are_those_of_the_request() -> None:
    heads = Heads()
    assert shown(heads, asked("alpha", copied="one")) == ["alpha", "one"]
    assert shown(heads, asked("beta", path="b.py")) == ["beta"]
    assert shown(heads, asked("alpha", copied="two")) == ["alpha", "two"]


def test_a_file_without_others_shows_the_first_ones_that_come() -> None:
    heads = Heads()
    empty = InfillRequest("", "", (CURSOR,), path="a.py")
    assert not heads.kept(empty).related
    assert shown(heads, asked("alpha")) == ["alpha"]
    assert [snippet.text for snippet in heads.kept(empty).related] == ["alpha"]


def test_only_so_many_files_are_remembered() -> None:
    heads = Heads()
    for number in range(MOST_FILES + 1):
        heads.kept(asked("alpha", "beta", path=f"{number}.py"))
    assert shown(heads, asked("alpha", "gamma", path="0.py")) == ["alpha gamma"]
    assert shown(heads, asked("alpha", "gamma", path="9.py")) == ["alpha beta"]
