"""What a file's own tokens say comes next."""

from __future__ import annotations

import pytest

from dg_lsp.engine.common.file_model import FileModel


def test_the_token_after_the_longest_match_is_likeliest() -> None:
    file = FileModel([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], [])
    guess = file.guess([])
    assert max(guess.shares, key=guess.shares.__getitem__) == 4  # after 1 2 3, not after 9 2 3
    assert 0 < guess.weight < 1


def test_written_tokens_extend_the_match() -> None:
    assert FileModel([7, 8, 9, 7], [])
    assert set(FileModel([7, 8, 9, 7], []).guess([8]).shares) == {9}


def test_text_after_the_hole_counts_but_no_match_spans_the_hole() -> None:
    assert set(FileModel([5], [5, 6]).guess([]).shares) == {6}
    assert FileModel([4, 5], [6]).guess([]).shares == {}


def test_a_longer_match_weighs_more() -> None:
    short = FileModel([1, 9, 3, 1], []).guess([]).weight
    long = FileModel([6, 7, 1, 9, 3, 6, 7, 1], []).guess([]).weight
    assert long > short > 0


@pytest.mark.parametrize(("before", "after"), [([], []), ([1], []), ([], [1])])
def test_a_file_without_a_match_gives_no_guess(before: list[int], after: list[int]) -> None:
    assert FileModel(before, after).guess([]).weight == 0.0


def test_related_files_count_but_no_match_spans_two_files() -> None:
    alone = FileModel([5, 6], [])
    assert alone.guess([]).weight == 0.0
    with_related = FileModel([5, 6], [], related=[[1, 5, 6, 7], [8, 6]])
    assert set(with_related.guess([]).shares) == {7}
    assert with_related.guess([7]).weight == 0.0
