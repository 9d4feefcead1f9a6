"""What the index of a repository finds for a hole."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.core import repository
from dg_lsp.core.repository import Repository
from dg_lsp.core.values import Hole, InfillRequest, Snippet, Span


def repo(**files: str) -> Repository:
    paths = {name.replace("_py", ".py"): text for name, text in files.items()}
    return Repository({path: repository.index(path, "python", text) for path, text in paths.items()})


def request(text: str, *, path: str = "here.py", block: bool = False) -> InfillRequest:
    prefix, suffix = text.split("$0")
    return InfillRequest(
        prefix, suffix, (Hole(Span(0, 0), "cursor", extent="block" if block else "line"),), language="python", path=path
    )


def texts(snippets: tuple[Snippet, ...]) -> list[str]:
    return [snippet.text for snippet in snippets]


OPENED = "def load(path):\n    with open(path, encoding='utf-8') as file:\n        return json.load(file)\n"


def test_a_passage_continues_the_text_before_the_hole() -> None:
    found = repository.passages(request("    with open(path, encoding='utf-8') as $0\n"), repo(a_py="x = 1\n", b_py=OPENED))
    assert [(snippet.path, snippet.for_copying) for snippet in found] == [("b.py", True)]
    assert "as file:\n        return json.load(file)" in found[0].text


def test_a_passage_is_found_inside_a_word_and_after_white_space() -> None:
    files = repo(b_py=OPENED)
    for text in (
        "open(path, enc$0",
        "open(path, encoding=$0",
        "with  open( path , $0",
        "  open(path, encoding='utf-8') as f$0",
    ):
        assert len(repository.passages(request(text), files)) == 1, text


def test_code_that_any_file_has_is_no_passage() -> None:
    files = repo(b_py="for change in (edit.changes())) {\n  change.ask = false;\n}\n")
    assert repository.passages(request("for column in (this.columns())) {\n  $0\n}\n", block=True), files) == ()


def test_a_passage_in_another_indentation_is_found() -> None:
    text = "if True:\n    def load(path):\n        with open(path, encoding='utf-8') as file:\n            $0\n"
    assert len(repository.passages(request(text, block=True), repo(b_py=OPENED))) == 1


def test_the_passage_that_agrees_longest_on_both_sides_comes_first() -> None:
    files = repo(
        a_py="def a():\n    total = count(rows, columns, 1)\n",
        b_py="def b():\n    total = count(rows, columns, 2) + rest\n",
        c_py="def c():\n    if total:\n        total = count(rows, columns, 3)\n",
    )
    found = repository.passages(request("    if total:\n        total = count(rows, columns, $0)\n"), files)
    assert [snippet.path for snippet in found] == ["c.py", "a.py", "b.py"]
    found = repository.passages(request("    total = count(rows, columns, $0) + rest\n"), files)
    assert found[0].path == "b.py"


def test_the_file_itself_and_other_languages_give_no_passage() -> None:
    files = Repository(
        {"here.py": repository.index("here.py", "python", OPENED), "a.js": repository.index("a.js", "javascript", OPENED)}
    )
    assert repository.passages(request("open(path, encoding='utf-8') as $0"), files) == ()


def test_passages_that_continue_alike_count_once() -> None:
    same = {f"f{n}_py": f"# {n}\n{OPENED}" for n in range(20)}
    assert len(repository.passages(request("open(path, encoding='utf-8') as $0"), repo(**same))) == 1


def test_few_tokens_before_the_hole_find_nothing() -> None:
    for text in ("$0", "\n$0", "with $0", " $0x"):
        assert repository.passages(request(text), repo(b_py=OPENED)) == ()


class Counted(str):
    """A text that counts how often a part of any such text is read."""

    n_read = 0

    def __getitem__(self, key: object) -> str:
        Counted.n_read += 1
        return super().__getitem__(key)  # type: ignore[index]


def test_a_phrase_that_is_everywhere_takes_no_longer() -> None:
    texts = {f"f{idx}_py": "f(x)\n" * 2000 for idx in range(20)}
    files = {path: replace(file, text=Counted(file.text)) for path, file in repo(**texts).files.items()}
    assert repository.passages(request("g(x)\n$0"), Repository(files)) == ()
    assert 0 < Counted.n_read < 1000


WORDS = st.sampled_from(["a", "bb", "(", ")", "=", "\n", "\n    ", " ", "x1", "é", ".", "return "])


@given(st.lists(WORDS, max_size=60).map("".join), st.integers(0, 200), st.integers(0, 8))
@example("aaaaaaaaaaa(a(a\n\na", 16, 1)
def test_each_place_in_an_indexed_text_finds_itself_from_outside(text: str, at: int, most: int) -> None:
    at = min(at, len(text))
    files = repo(b_py=text)
    one = InfillRequest(text[:at], text[at:], (Hole(Span(0, 0), "cursor"),), language="python", path="a.py")
    found = repository.passages(one, files, most)
    assert len(found) <= most
    assert all(snippet.text in text and snippet.text for snippet in found if snippet.text)
    n_tokens = len([token for token, _ in repository._tokens(text[:at].rstrip(" \t"))])
    is_long = len(text[:at].replace(" ", "")) >= repository.MIN_MATCH
    # Several line ends are one token, so a place between them is none.
    is_between = text[:at].rstrip(" \t").endswith("\n") and text[at:].lstrip(" \t").startswith("\n")
    if most and n_tokens > repository.GRAM + 1 and is_long and text[at:].strip() and not is_between:
        assert found
