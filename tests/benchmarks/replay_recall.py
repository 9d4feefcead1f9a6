"""Count where the names stand that a right answer needs and its file lacks.

A name is an identifier of what the commit has at the position, outside of strings and comments, that the file has nowhere
else. One that no other file has either is new: the answer brings it, and no text could. The others are looked up in what the
model is shown, in what the request has, and in the files from which it could be shown. A position is covered by a source that
has all of its names that are not new.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from tree_sitter import Node

from dg_lsp.core import context, holes, languages, syntax
from dg_lsp.core.repository import Repository
from dg_lsp.core.values import Document, InfillRequest
from dg_lsp.engine.backends import local
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.infill.workspace import ContextReader
from tests.benchmarks import commits, replay_table
from tests.benchmarks.commits import Hole, Mirrors, Position

SOURCES = (
    "shown to the model",
    "in the request, to read",
    "in the request, to read or to copy",
    "imported files",
    "tested module",
    "files of the same folder",
    "any of these three",
    "index",
    "repository, same language",
)
_TEST_PARTS = re.compile(r"(?:^|[._-])(?:tests?|spec|it)(?=$|[._-])|(?:Tests?|IT)$", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d]\w*")

Lay = Callable[[InfillRequest], str]


def show(options: argparse.Namespace) -> int:
    """Print how many positions each source covers, and with a result file how many of these were right.

    The names of each position go to a file, from which the next run takes them.
    """
    file = Path(options.names)
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    by_id = {row["id"]: row for row in rows}
    exact = {row["id"]: row["exact"] for row in replay_table.read(options.out)[1]} if options.out else {}
    positions = commits.spread(commits.read(options.set), options.sample)
    if exact:
        positions = [each for each in positions if each.id in exact]
    missing = [each for each in positions if each.id not in by_id]
    with file.open("a", encoding="utf-8") as out:
        for hole, names, sources in _looked_up(Mirrors(options.mirror), missing, options.model):
            row = {
                "id": hole.position.id,
                "lacking": sorted(names),
                "found": {key: sorted(own) for key, own in sources.items()},
            }
            print(json.dumps(row), file=out, flush=True)
            by_id[row["id"]] = row
    lacking = {each.id: set(by_id[each.id]["lacking"]) for each in positions}
    found = {each.id: {key: set(own) for key, own in by_id[each.id]["found"].items()} for each in positions}
    _print({each.id: each for each in positions}, lacking, found, exact)
    return 0


def _print(
    by_id: Mapping[str, Position],
    lacking: Mapping[str, set[str]],
    found: Mapping[str, Mapping[str, set[str]]],
    exact: Mapping[str, bool],
) -> None:
    needing = [each for each in by_id if lacking[each]]
    known = {each: found[each][SOURCES[-1]] for each in needing}
    wanting = [each for each in needing if known[each]]
    n_names, n_new = (sum(map(len, each)) for each in (known.values(), [lacking[each] - known[each] for each in needing]))
    print(f"{len(by_id)} positions; {len(needing)} need a name that the file lacks, {len(wanting)} one that another file has")
    print(f"{n_names} such names in all, and {n_new} new")
    for title, ids in (("file has all names", [each for each in by_id if not lacking[each]]), ("lacks one", wanting)):
        if exact:
            print(f"{title}: {sum(exact[each] for each in ids)} of {len(ids)} exact")
    kinds = [*commits.KINDS, "all"]
    print(f"\n| source | names | {' | '.join(kinds)} | exact where covered |\n| --- |" + " ---: |" * (len(kinds) + 2))
    for source in SOURCES:
        n_found = sum(len(found[each][source] & known[each]) for each in wanting)
        covered = [each for each in wanting if known[each] <= found[each][source]]
        cells = []
        for kind in kinds:
            own = [each for each in wanting if kind in ("all", by_id[each].kind)]
            cells.append(f"{len(set(own) & set(covered))} of {len(own)}")
        right = f"{sum(exact[each] for each in covered)} of {len(covered)}" if exact else "-"
        print(f"| {source} | {n_found / max(n_names, 1):.2f} | {' | '.join(cells)} | {right} |")


def _layout(model: str) -> Lay:
    """Return a function that returns the text that the model reads of a request."""
    filler = local.filler_of(local.load_model(model, device="cpu"))
    layout, vocabulary = filler.layout, filler.loaded.vocabulary
    return lambda request: vocabulary.decode(layout.lay_out(request).ids)


def _looked_up(
    mirrors: Mirrors, positions: Sequence[Position], model: str
) -> Iterator[tuple[Hole, set[str], dict[str, set[str]]]]:
    """Yield each position with the names that its file lacks, and those of them that each source has."""
    lay = _layout(model)
    by_commit = defaultdict[tuple[str, str], list[Position]](list)
    for position in positions:
        by_commit[position.repository, position.commit].append(position)
    order = list(by_commit.items())
    random.Random(7).shuffle(order)
    for (repository, commit), own in order:
        wanting = [(hole, lacking_names(hole)) for hole in map(mirrors.hole, own)]
        yield from ((hole, names, {}) for hole, names in wanting if not names)
        wanting = [(hole, names) for hole, names in wanting if names]
        if not wanting:
            continue
        with tempfile.TemporaryDirectory(prefix="recall-") as folder:
            root = Path(folder).resolve() / repository.rpartition("/")[2]
            root.mkdir()
            mirrors.checkout(repository, commit, root)
            (root / ".git").mkdir(exist_ok=True)  # where the workspace begins
            for hole, _ in wanting:
                (root / hole.position.path).write_text(hole.opened, encoding="utf-8", newline="")
            reader = ContextReader()
            for hole, names in wanting:
                yield hole, names, _sources(hole, names, root, reader, lay)


def lacking_names(hole: Hole) -> set[str]:
    """Return the identifiers of the truth that the rest of the file does not have."""
    language = languages.for_path(hole.position.path)
    assert language is not None
    start, end = hole.position.cursor, hole.position.end
    tree = syntax.parse(hole.text, language)
    present = set(_WORD.findall(hole.before + "\n")) | set(_WORD.findall(hole.after))
    names = set()
    for node in _leaves(tree.tree.root_node):
        span = tree.span(node)
        if "identifier" in node.type and span.end > start and span.start < end:
            names.add(hole.text[span.start : span.end])
    return names - present


def _leaves(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        one = stack.pop()
        if not one.children:
            yield one
        stack.extend(one.children)


def _sources(hole: Hole, names: set[str], root: Path, reader: ContextReader, lay: Lay) -> dict[str, set[str]]:
    """Return the names that each source has."""
    path = root / hole.position.path
    language = languages.for_path(hole.position.path)
    assert language is not None
    document = Document(path.as_uri(), language.name, hole.before + hole.after)
    file_context = reader.read(path, document)
    tree = syntax.of(document)
    target = holes.at_cursor(document, hole.position.cursor, tree)
    request = pipeline.to_request(document, (target,), file_context, syntax=tree)
    texts = {
        "shown to the model": [lay(request)],
        "in the request, to read": [each.text for each in request.related if not each.for_copying],
        "in the request, to read or to copy": [each.text for each in request.related],
        **_files(hole, file_context, document),
        "repository, same language": _same_language(root, path),
    }
    return {source: {name for name in names if any(_has(text, name) for text in texts[source])} for source in SOURCES}


def _files(hole: Hole, file_context: FileContext, document: Document) -> dict[str, list[str]]:
    files: Repository = file_context.files
    others = [file for key, file in files.files.items() if key != file_context.own]
    names = context.imports(document.text, document.language)
    imported = [file.text for file in others if context.is_imported(file.path, names)]
    own = PurePosixPath(hole.position.path)
    stem = _TEST_PARTS.sub("", own.stem.partition(".")[0])
    tested = [file.text for file in others if _stem(file.path) == stem and file.path != hole.position.path]
    beside = [
        file.text for file in others if PurePosixPath(file.path).parent == own.parent and file.language == document.language
    ]
    return {
        "imported files": imported,
        "tested module": tested if hole.position.is_test else [],
        "files of the same folder": beside,
        "any of these three": [*imported, *(tested if hole.position.is_test else []), *beside],
        "index": [file.text for file in others],
    }


def _stem(path: str) -> str:
    return PurePosixPath(path).stem.partition(".")[0]


def _same_language(root: Path, own: Path) -> list[str]:
    suffixes = {own.suffix, *((".h",) if own.suffix == ".c" else (".ts", ".tsx") if own.suffix in (".ts", ".tsx") else ())}
    paths = (path for path in root.rglob("*") if path.suffix in suffixes and path != own and path.is_file())
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]


def _has(text: str, name: str) -> bool:
    return name in text and re.search(rf"\b{re.escape(name)}\b", text) is not None
