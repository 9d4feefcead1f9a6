"""Which paragraphs of other files are shown for a place."""

from __future__ import annotations

from dg_lsp.core import context
from dg_lsp.core.values import Snippet

CART = """class Cart:
    def total(self):
        return sum(self.prices)

    def add(self, price):
        self.prices.append(price)
"""
OTHER = "def unrelated():\n    first = 1\n    second = 2\n    return first\n"


def chosen(above: str, *texts: str, below: str = "", limit_chars: int = 10_000) -> list[str]:
    files = [Snippet(f"{number}.py", text) for number, text in enumerate(texts)]
    return [snippet.text for snippet in context.paragraphs(above, below, files, limit_chars)]


def test_a_paragraph_with_the_rare_names_around_the_place_comes_first() -> None:
    use = "cart = Cart()\ncart.add(price)\ncart.add(price)\nprint(cart.total())\n"
    assert chosen("cart = Cart()\ncart.add(3)", OTHER, use, CART)[0] == use
    assert chosen("x = 1", OTHER, use, below="cart.total()") == [use]


def test_a_nearer_name_counts_more() -> None:
    one, other = (f"{name} = 1\n{name}(2)\n{name}(3)\n{name}(4)\n" for name in ("alpha", "gamma"))
    assert chosen("alpha()\n" + "\n" * 12 + "gamma()", one, other, OTHER) == [other, one]


def test_text_that_shares_no_name_is_not_shown() -> None:
    assert chosen("alpha()", OTHER) == []
    assert chosen("", OTHER) == chosen("first") == []


def test_a_blank_line_ends_a_paragraph_of_some_lines_and_a_long_one_is_divided() -> None:
    short, rest = "alpha = 1\n\nalpha(2)\nalpha(3)\n", "beta = 4\nbeta(5)\nbeta(6)\nbeta(7)\n"
    assert chosen("alpha", f"{short}\n{rest}", OTHER) == [short]
    long = "".join(f"line{number} = 0\n" for number in range(context.MOST_LINES + 4))
    assert chosen("line1", long, OTHER)[0].count("\n") == context.MOST_LINES


def test_the_text_has_a_limit_and_the_last_paragraph_is_cut_at_a_line_end() -> None:
    text = "alpha = 1\nalpha(2)\nalpha(3)\nalpha(4)\n"
    assert chosen("alpha", text, OTHER, limit_chars=20) == ["alpha = 1\nalpha(2)\n"]
    assert chosen("alpha", text, OTHER, limit_chars=5) == chosen("alpha", text, OTHER, limit_chars=0) == []


def test_the_same_paragraph_of_several_files_is_shown_once_with_plain_line_ends() -> None:
    text = "alpha = 1\nalpha(2)\nalpha(3)\nalpha(4)\n"
    assert chosen("alpha", text, "\ufeff" + text.replace("\n", "\r\n"), OTHER, CART) == [text]


def test_files_that_were_prepared_are_not_divided_again() -> None:
    files = [Snippet("a.py", CART + "# prepared\n"), Snippet("b.py", OTHER + "# prepared\n")]
    context.divide(files)
    before = context._divided.cache_info().misses
    assert context.paragraphs("cart.add(price)", "", files, 1_000)
    assert context._divided.cache_info().misses == before
