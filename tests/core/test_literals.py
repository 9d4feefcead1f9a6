"""Finding strings and comments without a syntax tree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import languages, literals

LANGUAGES = ["", *(language.name for language in languages.TABLE)]


@given(text=st.text("ab(){}[]'\"`\\#/*- \n", max_size=60), language=st.sampled_from(LANGUAGES))
def test_masking_strings_and_comments_keeps_length_and_lines(text: str, language: str) -> None:
    code = literals.mask(text, language)
    assert len(code) == len(text)
    assert all(one in (other, "\0") for one, other in zip(code, text, strict=True))
