"""What the index of a repository finds for a hole."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.core import context, languages, repository, syntax
from dg_lsp.core.repository import Repository, symbols
from dg_lsp.core.values import Hole, InfillRequest, Snippet, Span


def repo(**files: str) -> Repository:
    paths = {name.replace("_py", ".py"): text for name, text in files.items()}
    return Repository({path: repository.index(path, "python", text) for path, text in paths.items()})


def request(text: str, *, path: str = "here.py", block: bool = False) -> InfillRequest:
    prefix, suffix = text.split("$0")
    return InfillRequest(prefix, suffix, (Hole(Span(0, 0), "cursor", block=block),), language="python", path=path)


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


def test_definitions_of_the_names_near_the_hole() -> None:
    files = repo(
        shop_py="class Cart:\n    def __init__(self, owner):\n        self.owner = owner\n\n"
        "    def total(self):\n        return 1\n",
        money_py="def rounded(value, digits=2):\n    return round(value, digits)\n\ndef unused():\n    pass\n",
    )
    found = repository.definitions(request("def bill(owner):\n    cart = Cart(owner)\n    return rounded($0)\n"), files, 1_000)
    assert {snippet.path: snippet.text for snippet in found} == {
        "shop.py": "class Cart:\n    def __init__(self, owner):\n    def total(self):\n",
        "money.py": "def rounded(value, digits=2):\n",
    }
    assert not any(snippet.for_copying for snippet in found)


def test_a_definition_in_an_imported_file_comes_before_others_of_the_name() -> None:
    files = repo(**{f"f{n}_py": f"def parse(text, n{n}):\n    pass\n" for n in range(5)})
    assert repository.definitions(request("x = parse($0)\n"), files, 1_000) == ()
    found = repository.definitions(request("from f3 import parse\n\nx = parse($0)\n"), files, 1_000)
    assert texts(found) == ["def parse(text, n3):\n"]


def test_the_word_that_is_typed_is_not_looked_up() -> None:
    assert repository.definitions(request("x = rounded$0\n"), repo(a_py="def rounded(value):\n    pass\n"), 1_000) == ()


def test_definitions_come_first_and_the_shown_text_keeps_to_its_limit() -> None:
    files = repo(a_py=f"def rounded(value):\n    pass\n\n{OPENED}")
    related = [Snippet("b.py", "line\n" * 100), Snippet("c.py", "other\n" * 100)]
    result = repository.with_repository(request("y = rounded(2)\nopen(path, encoding=$0"), related, files, 400)
    shown = [snippet for snippet in result.related if not snippet.for_copying]
    assert [snippet.path for snippet in shown] == ["a.py", "b.py"]
    assert result.related[: len(shown)] == tuple(shown)
    assert 300 < sum(len(snippet.text) for snippet in shown) <= 400
    assert [snippet.path for snippet in result.related[len(shown) :]] == ["a.py"]


def test_no_text_is_added_without_room_for_it() -> None:
    plain = request("open(path, encoding=$0")
    assert repository.with_repository(plain, [Snippet("b.py", "x\n")], repo(b_py=OPENED), 0) == plain


def test_a_changed_text_replaces_the_indexed_one() -> None:
    texts = {"b.py": "def other():\n    pass\n", "new.py": OPENED}
    files = repo(b_py=OPENED).changed({path: repository.index(path, "python", text) for path, text in texts.items()})
    assert list(files.files) == ["b.py"]
    assert repository.passages(request("open(path, encoding=$0"), files) == ()
    assert set(files.by_name) == {"other"}


def test_the_names_of_a_changed_repository_are_those_of_a_new_one() -> None:
    texts = {f"{name}_py": f"def shared():\n    pass\n\n\ndef only_{name}():\n    pass\n" for name in "abc"}
    new = "def only_c():\n    pass\n\n\nclass Other:\n    def shared(self):\n        pass\n"
    before = repo(**texts)
    changed = before.changed({"b.py": repository.index("b.py", "python", new)})
    again = changed.changed({"a.py": repository.index("a.py", "python", "x = 1\n")})
    assert changed.by_name == repo(**{**texts, "b_py": new}).by_name
    assert again.by_name == repo(**{**texts, "b_py": new, "a_py": "x = 1\n"}).by_name
    assert before.by_name == repo(**texts).by_name


def test_every_language_lists_its_definitions() -> None:
    cases = {
        "typescript": ("interface Point { x: number }\nfunction area(p: Point): number { return 1 }\n", {"Point", "area"}),
        "go": ("package a\n\ntype Point struct {\n\tX int\n}\n\nfunc Area(p Point) int {\n\treturn 1\n}\n", {"Point", "Area"}),
        "rust": ("struct Point { x: i32 }\nfn area(p: Point) -> i32 { 1 }\n", {"Point", "area"}),
        "python": ("class A:\n    def b(self):\n        pass\n", {"A", "b"}),
    }
    for name, (text, expected) in cases.items():
        language = languages.get(name)
        assert language is not None
        assert {symbol.name for symbol in symbols(syntax.parse(text, language))} == expected, name


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


def test_a_member_is_shown_only_for_an_attribute() -> None:
    files = repo(a_py="class Cart:\n    def total(self):\n        pass\n")
    assert repository.definitions(request("total = 1\nprint($0)\n"), files, 1_000) == ()
    assert texts(repository.definitions(request("x = cart.total($0)\n"), files, 1_000)) == ["    def total(self):\n"]


def test_a_definition_in_the_related_text_is_not_repeated() -> None:
    files = repo(a_py="def rounded(value):\n    pass\n", b_py="def counted(value):\n    pass\n")
    related = [Snippet("a.py", "import x\n\ndef rounded(value):\n    pass\n")]
    result = repository.with_repository(request("y = rounded(counted(2), $0)\n"), related, files, 1_000)
    assert [snippet.path for snippet in result.related if not snippet.for_copying] == ["b.py", "a.py"]


def test_a_name_of_many_definitions_costs_no_more_than_a_rare_one(monkeypatch: pytest.MonkeyPatch) -> None:
    files = repo(**{f"f{n}_py": "def load():\n    pass\n" for n in range(repository.MAX_NAMESAKES + 1)})
    compared = list[str]()
    is_imported = context.is_imported

    def noted(path: str, names: Iterable[str]) -> bool:
        compared.append(path)
        return is_imported(path, names)

    monkeypatch.setattr(context, "is_imported", noted)
    assert repository.definitions(request("from f1 import load\nload($0"), files, 1_000) == ()
    assert not compared
    fewer = Repository(dict(list(files.files.items())[1:]))
    assert texts(repository.definitions(request("from f1 import load\nload($0"), fewer, 1_000)) == ["def load():\n"]


def test_special_methods_are_not_looked_up() -> None:
    files = repo(a_py="class Cart:\n    def __len__(self):\n        return 1\n")
    assert repository.definitions(request("x = cart.__len__($0)\n"), files, 1_000) == ()
