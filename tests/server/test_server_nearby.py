"""Which documents get no suggestions because of their names, where no workspace tells."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp.core import holes, syntax
from dg_lsp.core.values import Document, Snippet, Span
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.server.snapshot import Nearby
from dg_lsp.server.sync import Documents
from dg_lsp.wire.settings import Settings
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("uris.txt"))


async def refusal(uri: str) -> str:
    return await Nearby(lambda: 0.0).look(uri)


@pytest.mark.parametrize(("uri", "is_refused"), ROWS["secrets"])
async def test_secret_names_outside_all_folders_are_refused(uri: str, is_refused: str) -> None:
    assert bool(await refusal(uri)) == (is_refused == "yes")


async def test_a_link_outside_all_folders_is_judged_by_its_target(tmp_path: Path) -> None:
    (tmp_path / "notes.py").symlink_to(".env")
    assert await refusal((tmp_path / "notes.py").as_uri()) == "may hold secrets"


async def test_a_file_outside_of_all_folders_obeys_the_ignore_files_around_it(tmp_path: Path) -> None:
    for name in (".git", "kept", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / ".gitignore").write_text("private.py\n/tmp/\n")
    (tmp_path / "kept" / ".dgignore").write_text("own.py\n")
    (tmp_path / "kept" / "link.py").symlink_to(tmp_path / "tmp" / "main.py")
    reasons = {
        name: await refusal((tmp_path / name).as_uri())
        for name in ("main.py", "private.py", "tmp/main.py", "kept/main.py", "kept/own.py", "kept/link.py")
    }
    by_git = "is ignored by .gitignore"
    assert reasons == {
        "main.py": "",
        "private.py": by_git,
        "tmp/main.py": by_git,
        "kept/main.py": "",
        "kept/own.py": "is ignored by .dgignore",
        "kept/link.py": by_git,
    }


async def test_a_folder_that_can_not_be_read_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    # No file system takes so long a name, and nobody, not even root, may look into it.
    bad, good = tmp_path / ("x" * 300), tmp_path / "good"
    (good / "package").mkdir(parents=True)
    nearby = Nearby(lambda: 0.0)
    nearby.set_roots([bad.as_uri(), good.as_uri()])
    assert await nearby.look((good / "package" / "a.py").as_uri()) == ""
    document = Document((good / "package" / "a.py").as_uri(), "python", "")
    # Without a limit on related text, nothing is read.
    assert nearby.context(document, Settings(related_chars=0)).path == "package/a.py"
    assert await nearby.look((bad / "a.py").as_uri()) == "lies in a workspace folder that can't be read"


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A workspace folder `app` with links out of it, into it and within it, and folders beside it."""
    for name in ("app/.git", "app/packages", "app/src", "app/private", "app/node_modules", "app/kept", "shared/inner"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "app" / ".gitignore").write_text("/private/\nnode_modules/\n/packages/named\n")
    (tmp_path / "app" / ".dgignore").write_text("/kept/\n/packages/kept/\n")
    (tmp_path / "shared" / ".gitignore").write_text("ours*.py\n")
    (tmp_path / "shared" / ".dgignore").write_text("/inner/\n")
    for name in ("packages/shared", "packages/named", "packages/kept", "node_modules/shared"):
        (tmp_path / "app" / name).symlink_to(tmp_path / "shared")
    (tmp_path / "app" / "open").symlink_to("private")
    (tmp_path / "app" / "again").symlink_to("src")
    (tmp_path / "by-link").symlink_to("app")
    (tmp_path / "into").symlink_to("app/private")
    return tmp_path


@pytest.fixture
async def nearby(linked: Path) -> AsyncIterator[Nearby]:
    nearby = Nearby(lambda: 0.0)
    nearby.set_roots([(linked / "app").as_uri()])
    yield nearby
    await nearby.close()


def reasons(folder: Path, *names: str, roots: tuple[str, ...] = ("app",)) -> list[str]:
    async def look() -> list[str]:
        nearby = Nearby(lambda: 0.0)
        nearby.set_roots([(folder / root).as_uri() for root in roots])
        return [await nearby.look((folder / name).as_uri()) for name in names]

    return asyncio.run(look())


BY_GIT, BY_US = "is ignored by .gitignore", "is ignored by .dgignore"


@pytest.mark.parametrize("roots", [("app",), ("by-link",), ("app", "shared"), ("shared", "app"), ()])
@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("shared/a.py", "app/packages/shared/a.py", "app/node_modules/shared/a.py", "app/packages/named/a.py"), ""),
        (("shared/ours1.py", "app/packages/shared/ours1.py", "app/node_modules/shared/ours1.py"), BY_GIT),
        (("shared/inner/a.py", "app/packages/shared/inner/a.py", "app/packages/named/inner/a.py"), BY_US),
        (("app/private/a.py", "app/open/a.py", "into/a.py", "by-link/private/a.py", "by-link/open/a.py"), BY_GIT),
        (("app/src/a.py", "app/again/a.py", "by-link/src/a.py", "by-link/again/a.py"), ""),
        (("shared/.env", "app/packages/shared/.env"), "may hold secrets"),
    ],
)
def test_a_file_has_the_same_rules_by_all_its_names(
    linked: Path, roots: tuple[str, ...], names: tuple[str, ...], reason: str
) -> None:
    assert reasons(linked, *names, roots=roots) == [reason] * len(names)


def test_a_rule_of_ours_for_a_link_counts_by_the_links_name(linked: Path) -> None:
    assert reasons(linked, "app/packages/kept/a.py", "app/packages/kept/deep/a.py") == [BY_US, BY_US]


def test_a_linked_file_has_the_rules_of_its_target_and_of_its_own_name(linked: Path) -> None:
    (linked / "app" / "private.py").symlink_to(linked / "app" / "private" / "a.py")
    (linked / "app" / "far.py").symlink_to(linked / "shared" / "a.py")
    (linked / "app" / "ours.py").symlink_to(linked / "shared" / "ours1.py")
    (linked / "app" / "kept" / "a.py").symlink_to(linked / "shared" / "a.py")
    (linked / "app" / "loop.py").symlink_to("loop.py")
    (linked / "app" / "keys.py").symlink_to(linked / ".ssh" / "id_rsa")
    names = ("private.py", "far.py", "ours.py", "kept/a.py", "loop.py", "keys.py")
    found = reasons(linked, *(f"app/{name}" for name in names))
    assert found[:4] == [BY_GIT, "", BY_GIT, BY_US]
    assert found[4:] in (["leads nowhere", "may hold secrets"], ["", "may hold secrets"])


async def test_a_linked_folder_outside_gets_no_text_of_the_workspace(linked: Path, nearby: Nearby) -> None:
    (linked / "app" / "src" / "a.py").write_text("secret_of_the_app = 1\n")
    (linked / "shared" / "b.py").write_text("b = 1\n")
    document = Document((linked / "app" / "packages" / "shared" / "a.py").as_uri(), "python", "import src.a\n")
    assert await nearby.look(document.uri) == ""
    context = await nearby.read(document, Settings(related_chars=8_000))
    assert (context.path, context.nearby, context.files.files) == ("a.py", (), {})


# In URIs, {} is the path of the workspace folder.
@pytest.mark.parametrize(
    "scheme",
    ["file://{}/NAME", "untitled:{}/NAME", "untitled://{}/NAME", "untitled:NAME", "vscode-notebook-cell:{}/NAME#W0"],
)
async def test_a_document_has_the_rules_of_its_file(linked: Path, nearby: Nearby, scheme: str) -> None:
    for name, reason in (("private/x.py", BY_GIT), ("kept/deep%20folder/x.py", BY_US), ("src/x.py", "")):
        assert await nearby.look(scheme.replace("{}", str(linked / "app")).replace("NAME", name)) == reason


@pytest.mark.parametrize("uri", ROWS["no files"])
async def test_a_document_that_is_no_file_is_refused(linked: Path, nearby: Nearby, uri: str) -> None:
    assert (await nearby.look(uri.replace("{}", str(linked / "app")))).startswith("is no file")


async def test_a_named_document_that_was_never_saved_has_the_rules_of_the_folder(linked: Path, nearby: Nearby) -> None:
    (linked / "app" / ".gitignore").write_text("*.local.py\n")
    assert await nearby.look("untitled:x.local.py") == BY_GIT
    assert await nearby.look("untitled:x.py") == ""


@pytest.mark.parametrize(
    "uri",
    ["untitled:Untitled-1", "", "file://", "inmemory://model/1"],
)
async def test_a_document_without_a_file_needs_no_rule_that_allows_it(linked: Path, nearby: Nearby, uri: str) -> None:
    (linked / "app" / ".gitignore").write_text("/*\n!/src/\n")
    assert await nearby.look(uri) == ""


async def until_indexed(nearby: Nearby, document: Document, paths: set[str]) -> None:
    while {file.path for file in nearby.context(document, Settings(related_chars=1_000)).files.files.values()} != paths:
        await asyncio.sleep(0.01)


async def test_the_files_of_a_folder_are_indexed_in_the_background_and_again_later(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "b.py").write_text("b = 1\n")
    document = Document((tmp_path / "a.py").as_uri(), "python", "a = 1\n")
    now = 0.0

    nearby = Nearby(lambda: now)
    nearby.set_roots([tmp_path.as_uri()])
    await nearby.look(document.uri)
    assert not nearby.context(document, Settings(related_chars=0)).files.files
    assert not nearby.context(document, Settings(related_chars=1_000)).files.files
    await until_indexed(nearby, document, {"a.py", "b.py"})
    (tmp_path / ".dgignore").write_text("b.py\n")
    now += 100
    await until_indexed(nearby, document, {"a.py"})
    outside = Document("file:///elsewhere/a.py", "python", "")
    await nearby.look(outside.uri)
    assert not nearby.context(outside, Settings(related_chars=1_000)).files.files
    nearby.set_roots([])
    assert not nearby.context(document, Settings(related_chars=1_000)).files.files
    await nearby.close()


async def test_a_folder_that_is_added_again_is_indexed_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    document = Document((tmp_path / "a.py").as_uri(), "python", "a = 1\n")

    nearby = Nearby(lambda: 0.0)
    for _ in range(2):
        nearby.set_roots([tmp_path.as_uri()])
        await nearby.look(document.uri)
        await until_indexed(nearby, document, {"a.py"})
        nearby.set_roots([])
    await nearby.close()


ANSWER = "    return price * quantity * (1 - discount_of(customer))\n"
LONG = "/".join(["a_folder_with_a_long_name"] * 20) + "/a.py"


@pytest.mark.parametrize(
    ("file", "opened"),
    [
        ("a.py", "a.py"),
        ("real/a.py", "link/a.py"),
        ("a.py", "other.py"),
        (LONG, LONG),
        (os.fsdecode(b"caf\xe9.py"), os.fsdecode(b"caf\xe9.py")),
        (os.fsdecode(b"\xff\xfe/a.py"), os.fsdecode(b"\xff\xfe/a.py")),
    ],
    ids=["plain", "linked folder", "linked file", "long", "latin-1", "folder"],
)
async def test_a_hole_gets_no_text_of_its_own_file_on_the_disk(tmp_path: Path, file: str, opened: str) -> None:
    """The editor shows the file without the answer, which is still on the disk."""
    top = "def total(price, quantity, customer):\n    check(price, quantity, customer)\n"
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"{top}{ANSWER}\n\ndef discount_of(customer):\n    return customer.share\n")
    (tmp_path / file).with_name("second.py").write_text(
        "def check(price, quantity, customer):\n    assert price and quantity and customer\n"
    )
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "other.py").symlink_to("a.py")
    document = Document((tmp_path / opened).as_uri(), "python", f"{top}    \n")
    hole = holes.at_cursor(document, len(top) + 4, syntax.of(document))

    nearby = Nearby(lambda: 0.0)
    nearby.set_roots([tmp_path.as_uri()])
    assert await nearby.look(document.uri) == ""
    while len(nearby.context(document, Settings(related_chars=8_000)).files.files) < 2:
        await asyncio.sleep(0.01)
    await nearby.read(document, Settings(related_chars=8_000))
    context = nearby.context(document, Settings(related_chars=8_000))
    request = pipeline.to_request(document, (hole,), context)
    assert "def check" in str(request.related)
    assert "discount_of" not in str(request.related)
    await nearby.close()


async def test_a_save_forgets_nothing_until_it_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def check(value):\n    return value\n\nother = check\n")
    document = Document((tmp_path / "main.py").as_uri(), "python", "import helper\n")
    nearby, settings = Nearby(lambda: 0.0), Settings(related_chars=8_000)
    nearby.set_roots([tmp_path.as_uri()])
    assert await nearby.look(document.uri) == ""
    before = (await nearby.read(document, settings)).nearby
    (tmp_path / "helper.py").write_text("def verify(value):\n    return value\n\nother = verify\n")
    nearby.saved(document.uri)
    assert nearby.context(document, settings).nearby == before
    after = (await nearby.read(document, settings)).nearby
    assert "verify" in after[0].text
    await nearby.close()


async def test_what_was_shown_may_stay_while_its_file_has_it(tmp_path: Path) -> None:
    text = "import helper\n\n\ndef last(first):\n    check(first)\n    find(first)\n"
    document, own = Document((tmp_path / "main.py").as_uri(), "python", text), tmp_path / "helper.py"
    nearby, settings = Nearby(lambda: 0.0), Settings(related_chars=40)

    async def related(name: str) -> tuple[Snippet, ...]:
        at = text.index(name)
        nearby.saved(document.uri)
        assert await nearby.look(document.uri) == ""
        context = await nearby.read(document, settings)
        hole = holes.at_cursor(document, at, syntax.of(document))
        request = pipeline.to_request(replace(document, text=text[:at]), (replace(hole, span=Span(at, at)),), context)
        return tuple(each for each in request.related if not each.for_copying)

    nearby.set_roots([tmp_path.as_uri()])
    halves = "def last(check):\n    check(check)\n    check\n    check\n\ndef find(find):\n    find(find)\n    find\n    find\n"
    own.write_text(halves)
    first = await related("check")
    assert first
    assert {each.was_shown for each in first} == {False}
    again = await related("import")
    assert [replace(each, was_shown=False) for each in again if each.was_shown] == list(first)
    own.write_text(halves.replace("check", "judge"))
    assert not any(each.was_shown and "check" in each.text for each in await related("import"))
    own.write_text(halves)
    await related("check")
    (tmp_path / ".dgignore").write_text("helper.py\n")
    assert await related("import") == ()
    await nearby.close()


TOKEN = "ghp_" + "0123456789abcdefghij" * 2


def helper(name: str) -> str:
    return f"def {name}(first, second):\n    check(first, second, {name}_of(first))\n"


class Edited:
    """A folder with a `main.py`, and what its requests have of the other files, some of which an editor has open."""

    def __init__(self, folder: Path, **files: str) -> None:
        self.folder, self.documents = folder, Documents()
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        (folder / ".gitignore").write_text("ignored.py\n")
        text = "import helper\n\n\ndef last(first, second):\n    check(first, second, "
        self.main = Document((folder / "main.py").as_uri(), "python", text)
        # Time stands still, so nothing is read again because it is old.
        self.nearby = Nearby(lambda: 0.0, opened=self.documents.files)
        self.nearby.set_roots([folder.as_uri()])

    async def open(self, name: str, text: str) -> str:
        uri = (self.folder / f"{name}.py").as_uri()
        self.documents.open(uri, "python", 1, text)
        await self.nearby.look(uri)
        return uri

    async def until_seen(self, name: str) -> str:
        """Wait until the related text and the copies of a request at the end of `main.py` have a name; return both."""
        assert await self.nearby.look(self.main.uri) == ""
        hole = holes.at_cursor(self.main, len(self.main.text), syntax.of(self.main))
        while True:
            context = await self.nearby.read(self.main, Settings(related_chars=8_000))
            related = pipeline.to_request(self.main, (hole,), context).related
            seen = ["".join(each.text for each in related if each.for_copying is copied) for copied in (False, True)]
            if all(name in text for text in seen):
                return "".join(seen)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("disk", "opened", "present", "absent"),
    [
        ({"helper": helper("old")}, {}, "old", "new"),
        ({"helper": helper("old")}, {"helper": helper("new")}, "new", "old"),
        ({}, {"helper": helper("new")}, "new", "old"),
        ({"helper": helper("old")}, {"ignored": helper("new")}, "old", "new"),
        ({}, {"helper": helper("new") + f"token = '{TOKEN}'\n"}, "new", TOKEN),
    ],
    ids=["closed", "unsaved", "never saved", "ignored", "secret"],
)
async def test_of_open_files_a_request_has_what_the_editor_has(
    tmp_path: Path, disk: dict[str, str], opened: dict[str, str], present: str, absent: str
) -> None:
    edited = Edited(tmp_path, **disk)
    for name, text in opened.items():
        await edited.open(name, text)
    assert absent not in await edited.until_seen(present)
    await edited.nearby.close()


@pytest.mark.parametrize(("name", "is_unread"), [("ignored", True), ("credentials", True), ("helper", False)])
async def test_of_an_open_file_that_may_not_be_read_the_name_is_known(tmp_path: Path, name: str, is_unread: bool) -> None:
    edited = Edited(tmp_path, other=helper("old"))
    await edited.until_seen("old")
    await edited.open(name, helper("new"))
    files = edited.nearby.context(edited.main, Settings(related_chars=8_000)).files
    assert files.may_have(str(tmp_path / name)) == is_unread
    assert not files.may_have(str(tmp_path / "main"))
    await edited.nearby.close()


async def test_nothing_is_copied_from_an_open_file_that_got_settings_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    edited = Edited(tmp_path)
    edited.main = replace(edited.main, text=edited.main.text.replace("import helper", "import sub.helper"))
    uri = await edited.open("sub/helper", helper("new"))
    await edited.until_seen("new")
    settings = tmp_path / "sub" / ".dg-lsp.toml"
    settings.write_text('[privacy]\nlocal_only = ["*"]\n')
    edited.nearby.saved(settings.as_uri())
    hole = holes.at_cursor(edited.main, len(edited.main.text), syntax.of(edited.main))
    for _ in range(10):
        await edited.nearby.look(uri)
        await edited.nearby.look(edited.main.uri)
        context = await edited.nearby.read(edited.main, Settings(related_chars=8_000))
        related = pipeline.to_request(edited.main, (hole,), context).related
        assert not any("new" in each.text for each in related if each.for_copying)
        await asyncio.sleep(0.01)
    await edited.nearby.close()


@pytest.mark.parametrize("name", [".dgignore", ".gitignore"])
async def test_nothing_of_a_file_is_shown_once_an_ignore_file_that_excludes_it_is_saved(tmp_path: Path, name: str) -> None:
    edited = Edited(tmp_path, helper=helper("old"), other=helper("kept"))
    await edited.until_seen("old")
    (tmp_path / name).write_text("helper.py\n")
    edited.nearby.saved((tmp_path / name).as_uri())
    await edited.nearby.look(edited.main.uri)
    first = edited.nearby.context(edited.main, Settings(related_chars=8_000))
    assert not any("old" in str(text) for text in (first.nearby, *first.files.files.values()))
    assert "old" not in await edited.until_seen("kept")
    await edited.nearby.close()


async def test_nothing_is_kept_of_a_document_that_was_closed_while_it_was_read(tmp_path: Path) -> None:
    document = Document((tmp_path / "main.py").as_uri(), "python", "import helper\n")
    nearby = Nearby(lambda: 0.0)
    nearby.set_roots([tmp_path.as_uri()])
    looking = asyncio.create_task(nearby.look(document.uri))
    await asyncio.sleep(0)
    nearby.forget(document.uri)
    assert await looking == "has not been looked up yet"
    assert await nearby.look(document.uri) == ""
    reading = asyncio.create_task(nearby.read(document, Settings(related_chars=8_000)))
    await asyncio.sleep(0)
    nearby.forget(document.uri)
    assert await reading == FileContext("")
    assert document.uri not in nearby._looked
    assert document.uri not in nearby._related
    await nearby.close()


async def test_a_file_that_was_saved_and_closed_is_read_at_once(tmp_path: Path) -> None:
    edited = Edited(tmp_path, helper=helper("old"))
    await edited.until_seen("old")
    uri = await edited.open("helper", helper("new"))
    await edited.until_seen("new")
    (tmp_path / "helper.py").write_text(helper("newest"))
    edited.nearby.saved(uri)
    edited.documents.close(uri)
    edited.nearby.forget(uri)
    assert "old" not in await edited.until_seen("newest")
    await edited.nearby.close()
