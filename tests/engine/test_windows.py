"""What a causal model reads as the cursor moves: which window goes on, how many tokens are new, and when a better one is read.

No model: what counts as encoded is a list of token ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from dg_lsp.core.values import Hole, InfillRequest, Snippet, Span, n_common
from dg_lsp.engine.causal.layout import (
    LEAST_NEW,
    LEAST_TOKENS,
    LONGEST_TOKEN,
    MOST_LENGTHS,
    MOST_WINDOWS,
    SHORT_SUFFIX,
    TOKEN_CHARS,
    CausalProfile,
    CausalPrompt,
    FillInTheMiddle,
    LeftToRight,
    Windows,
)
from dg_lsp.engine.model.vocabulary import Vocabulary
from tests.engine.test_pretrained import FIM, tokenizer

CURSOR = Hole(Span(0, 0), "cursor")
FUNCTION = "def area{n}(width, height):\n    total = width * height\n    return total + {n}\n\n\n"
LINES = 5  # of a function
FILE = "".join(FUNCTION.format(n=n) for n in range(100, 300))
PROFILE = CausalProfile("fim", prefix_tokens=800, suffix_tokens=64, related_tokens=100)
MARKS = 4  # tokens between the parts of a prompt, and one that a cut may change


@dataclass
class Reader:
    """A model that encodes each prompt to its end."""

    layout: LeftToRight
    encoded: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.windows = Windows(self.layout, self.known)

    def known(self, ids: Sequence[int]) -> int:
        return max((n_common(each, tuple(ids)) for each in self.encoded), default=0)

    def read(self, asked: InfillRequest, n_tokens: float = 0.0) -> int:
        """Read for a request; return the number of new tokens."""
        self.prompt = self.windows.prompt(asked, n_tokens)
        return self._encode(self.prompt)

    def improve(self, asked: InfillRequest) -> int:
        """Read a better window; return the number of new tokens."""
        better = self.windows.better_prompt(asked)
        return 0 if better is None else self._encode(better)

    def _encode(self, prompt: CausalPrompt) -> int:
        n_new = len(prompt.ids) - self.known(prompt.ids)
        self.encoded.append(prompt.ids)
        return n_new

    def text(self) -> str:
        """What was read last of the file before the hole."""
        ids, vocabulary = self.prompt.ids, self.layout.vocabulary
        n_typed, end = len(self.prompt.typed), self.prompt.n_left
        start = end - (self.prompt.n_text - n_typed)
        return vocabulary.decode([*ids[start:end], *ids[len(ids) - n_typed :]])


@pytest.fixture(scope="module")
def fim() -> LeftToRight:
    return FillInTheMiddle(PROFILE, Vocabulary(tokenizer(*FIM)))


@pytest.fixture
def reader(fim: LeftToRight) -> Reader:
    return Reader(fim)


def at(
    line: int, text: str = FILE, typed: str = "", path: str = "a.py", related: Sequence[Snippet] = (), **more: Any
) -> InfillRequest:
    """A cursor behind what is typed in a new line before this one."""
    lines = text.splitlines(keepends=True)
    prefix, suffix = "".join(lines[:line]), "".join(lines[line:])
    return InfillRequest(f"{prefix}    {typed}", f"\n{suffix}", (CURSOR,), path=path, related=tuple(related), **more)


def n_tokens(reader: Reader, text: str) -> int:
    return len(reader.layout.vocabulary.encode(text))


def n_place(reader: Reader) -> int:
    """The tokens that are new wherever the cursor is: the suffix, and what stands between the parts."""
    return PROFILE.suffix_tokens + MARKS + n_tokens(reader, "    ")


# Where the cursor moves.


def test_a_cursor_that_moves_down_costs_the_lines_between(reader: Reader) -> None:
    reader.read(at(400))
    began = reader.text().splitlines()[0]
    for line in range(410, 500, 10):
        n_new = reader.read(at(line))
        assert n_new <= n_tokens(reader, FUNCTION.format(n=100)) * 10 // LINES + n_place(reader)
        assert reader.text().startswith(began) or reader.prompt.n_text < PROFILE.prefix_tokens
        assert reader.prompt.n_text <= MOST_LENGTHS * PROFILE.prefix_tokens


def test_a_cursor_that_moves_up_costs_the_suffix(reader: Reader) -> None:
    reader.read(at(450), math.inf)
    for line in (440, 430, 420):
        assert reader.read(at(line)) <= n_place(reader)


def test_what_is_typed_costs_its_own_tokens(reader: Reader) -> None:
    reader.read(at(400))
    for typed in ("ret", "return", "return wid", "return width + hei"):
        assert reader.read(at(400, typed=typed)) <= 4
        assert f"{reader.text()}{reader.prompt.heal.decode()}".endswith(f"\n    {typed}")


def test_much_typed_text_is_read_before_the_suffix_again(reader: Reader) -> None:
    reader.read(at(400))
    typed = "".join(f"width = height + {n}\n    " for n in range(20))
    reader.read(at(400, typed=typed))
    assert not reader.prompt.typed
    assert reader.text().endswith(typed.rstrip())


def test_another_function_gets_a_window_of_its_own_and_the_first_one_stays(reader: Reader) -> None:
    reader.read(at(400))
    first = reader.text()
    n_new = reader.read(at(700))
    assert LEAST_NEW <= reader.prompt.n_text < n_new
    assert reader.read(at(400)) == 0
    assert reader.text() == first
    assert reader.read(at(700)) == 0


def test_another_file_and_back_costs_nothing(reader: Reader) -> None:
    other = FILE.replace("area", "size")
    reader.read(at(400))
    reader.read(at(400, other, path="b.py"))
    assert "size" in reader.text()
    assert reader.read(at(400)) == 0
    assert reader.read(at(400, other, path="b.py")) == 0


def test_the_same_text_in_another_file_is_another_window(reader: Reader) -> None:
    reader.read(at(400))
    assert reader.read(at(400, path="b.py")) > LEAST_TOKENS


# What changes in the file.


def test_an_import_above_the_window_costs_nothing(reader: Reader) -> None:
    reader.read(at(400))
    assert reader.read(at(401, "import math\n" + FILE)) == 0


def test_an_import_in_a_short_file_costs_what_is_behind_it(reader: Reader) -> None:
    short = FILE[: FILE.index("def area104")]
    reader.read(at(20, short))
    n_new = reader.read(at(21, short.replace("def area101", "import math\ndef area101")))
    behind = short[short.index("def area101") :]
    assert n_new <= n_tokens(reader, "import math\n" + behind) + n_place(reader)
    assert reader.text().startswith("def area100")


def test_what_is_before_a_renamed_name_stays_used(reader: Reader) -> None:
    reader.read(at(500), math.inf)
    began = reader.text().splitlines()[0]
    renamed = FILE.replace("total + 198", "total + offset")
    n_new = reader.read(at(500, renamed))
    assert n_new <= n_tokens(reader, renamed[renamed.index("offset") : renamed.index("def area200")]) + n_place(reader)
    assert reader.text().startswith(began)


def test_a_window_whose_most_text_changed_gives_way_to_a_new_one(reader: Reader) -> None:
    reader.read(at(500), math.inf)
    began, n_long = reader.text().splitlines()[0], reader.prompt.n_text
    number = began.removeprefix("def area").partition("(")[0]
    renamed = FILE.replace(f"return total + {number}", "return total + offset")
    assert reader.read(at(500, renamed)) < n_long
    assert not reader.text().startswith(began)


def test_an_undone_change_costs_nothing(reader: Reader) -> None:
    reader.read(at(500))
    reader.read(at(500, FILE.replace("total + 198", "total + offset")))
    assert reader.read(at(500)) == 0


def test_a_paste_of_many_lines_costs_a_new_window(reader: Reader) -> None:
    reader.read(at(400), math.inf)
    pasted = FILE.replace("area", "size").replace("total", "sum")[: len(FILE) // 3]
    lines = FILE.splitlines(keepends=True)
    text = "".join([*lines[:400], pasted, *lines[400:]])
    n_new = reader.read(at(400 + pasted.count("\n"), text))
    assert n_new < PROFILE.prefix_tokens
    assert "size" in reader.text()
    assert reader.prompt.n_text >= LEAST_NEW
    assert reader.read(at(400)) <= n_place(reader)


def test_a_window_is_found_where_its_first_lines_are_repeated(reader: Reader) -> None:
    lines = "    width,\n" * 4_000
    reader.read(at(3_500, lines))
    assert reader.read(at(3_500, lines)) == 0
    assert reader.read(at(3_510, lines)) <= n_tokens(reader, "    width,\n" * 10) + n_place(reader)


def test_a_file_that_is_loaded_again_costs_nothing(reader: Reader) -> None:
    reader.read(at(400))
    again = "".join(list(FILE))
    assert reader.read(at(400, again)) == 0


# How long a window is.


def test_a_new_window_is_as_long_as_there_is_time(reader: Reader) -> None:
    sizes = list[int]()
    for number, time in enumerate((0, 200, 500, 700, 5_000, math.inf)):
        reader.read(at(600, path=f"{number}.py"), time)
        sizes.append(reader.prompt.n_text)
    assert sizes == sorted(sizes)
    assert LEAST_NEW <= sizes[0] == sizes[1] < LEAST_NEW + PROFILE.prefix_tokens // 2
    assert sizes[2] < sizes[3] < sizes[4]
    assert PROFILE.prefix_tokens <= sizes[4] == sizes[5]


def test_a_first_answer_reads_less_of_the_suffix(reader: Reader) -> None:
    reader.read(at(600))
    assert len(reader.prompt.ids) - reader.prompt.n_left <= SHORT_SUFFIX + 2
    reader.read(at(605), math.inf)
    assert len(reader.prompt.ids) - reader.prompt.n_left > SHORT_SUFFIX + 2


def test_a_window_begins_with_the_least_indented_line(reader: Reader) -> None:
    for line in range(600, 600 + LINES):
        reader.read(at(line, path=f"{line}.py"))
        assert reader.text().startswith("def area")


def test_a_long_line_is_cut_within_itself(reader: Reader) -> None:
    reader.read(InfillRequest("x = [" + "width, " * 5_000, "]\n", (CURSOR,)))
    assert LEAST_NEW <= reader.prompt.n_text <= LEAST_NEW + 2


def test_without_a_deadline_a_short_window_is_not_enough(reader: Reader) -> None:
    reader.read(at(600))
    assert reader.prompt.n_text < PROFILE.prefix_tokens
    reader.read(at(600), math.inf)
    assert reader.prompt.n_text >= PROFILE.prefix_tokens
    assert reader.read(at(600)) == 0


def test_what_is_not_encoded_any_more_is_no_window(reader: Reader) -> None:
    reader.read(at(600), math.inf)
    reader.encoded.clear()
    reader.read(at(600))
    assert reader.prompt.n_text < PROFILE.prefix_tokens


# Better windows.


def shown(reader: Reader) -> str:
    return reader.layout.vocabulary.decode(reader.prompt.ids[: -reader.prompt.n_text])


def paragraph(name: str, *, was_shown: bool = False) -> Snippet:
    return Snippet("other.py", f"{name} = {name}_{name}\n", was_shown=was_shown)


def test_a_better_window_is_long_shows_other_files_and_takes_over(reader: Reader) -> None:
    asked = at(600, related=(paragraph("point"),))
    reader.read(asked)
    assert "point" not in shown(reader)
    assert reader.improve(asked) >= PROFILE.prefix_tokens
    assert reader.improve(asked) == 0
    assert reader.read(asked) == 0
    assert reader.prompt.n_text >= PROFILE.prefix_tokens
    assert "point" in shown(reader)
    reader.read(at(610, related=(paragraph("point"),)))
    assert reader.prompt.n_text > PROFILE.prefix_tokens


def test_what_is_shown_of_other_files_stays_until_most_of_it_would_be_new(reader: Reader) -> None:
    reader.read(at(600, related=(paragraph("point"),)), math.inf)
    asked = at(605, related=(paragraph("point"), Snippet("more.py", "point = 1\n")))
    reader.read(asked)
    assert not reader.improve(asked)
    asked = at(610, related=(paragraph("shape"), paragraph("point", was_shown=True)))
    reader.read(asked)
    assert "point" in shown(reader)
    assert reader.improve(asked) > PROFILE.prefix_tokens
    reader.read(asked)
    assert "shape" in shown(reader)


def test_a_new_window_of_a_file_shows_what_its_last_one_shows(reader: Reader) -> None:
    reader.read(at(600, related=(paragraph("point"),)), math.inf)
    n_new = reader.read(at(200, related=(paragraph("shape"), paragraph("point", was_shown=True))))
    assert "point" in shown(reader)
    assert n_new <= len(reader.prompt.ids) - n_tokens(reader, paragraph("point").text)


@pytest.mark.parametrize("n_new", [0, 300, math.inf])
def test_what_a_request_does_not_allow_is_not_read(reader: Reader, n_new: float) -> None:
    reader.read(at(600, related=(paragraph("point"),)), math.inf)
    for asked in (at(602), at(602, related=(paragraph("shape"),)), at(200)):
        reader.read(asked, n_new)
        assert "point" not in shown(reader)
        reader.improve(asked)
        assert "point" not in shown(reader)


def test_snippets_that_are_only_copied_from_change_nothing(reader: Reader) -> None:
    copied = [Snippet("other.py", f"size_{n} = {n}\n", for_copying=True) for n in range(2)]
    reader.read(at(600, related=copied[:1]), math.inf)
    assert reader.read(at(600, related=copied[1:]), math.inf) == 0
    assert not reader.improve(at(600, related=copied[1:]))


def test_a_model_without_a_suffix_has_windows_too() -> None:
    reader = Reader(LeftToRight(CausalProfile("left", prefix_tokens=800), Vocabulary(tokenizer())))
    reader.read(at(400))
    assert reader.read(at(410)) <= n_tokens(reader, FUNCTION.format(n=100)) * 10 // LINES + MARKS
    assert reader.read(at(410, typed="return")) <= 2
    assert reader.read(at(400)) <= 2


def test_only_so_many_windows_are_remembered(reader: Reader) -> None:
    for number in range(MOST_WINDOWS + 1):
        reader.read(at(400, path=f"{number}.py"), math.inf)
    reader.read(at(400, path="1.py"))
    assert reader.prompt.n_text >= PROFILE.prefix_tokens
    reader.read(at(400, path="0.py"))
    assert reader.prompt.n_text < PROFILE.prefix_tokens


def test_a_window_that_is_too_long_for_a_place_is_not_encoded(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(FUNCTION.format(n=n) for n in range(1000, 3000))
    for line in range(400, 9000, 700):
        reader.read(at(line, text))
    vocabulary, n_chars = reader.layout.vocabulary, list[int]()
    encode = vocabulary.encode

    def counted(text: str) -> list[int]:
        n_chars.append(len(text))
        return encode(text)

    monkeypatch.setattr(vocabulary, "encode", counted)
    reader.read(at(9000, text))
    assert max(n_chars) <= max(MOST_LENGTHS * PROFILE.prefix_tokens * TOKEN_CHARS, PROFILE.prefix_tokens * LONGEST_TOKEN)
    assert sum(n_chars) <= 3 * MOST_LENGTHS * PROFILE.prefix_tokens * TOKEN_CHARS
