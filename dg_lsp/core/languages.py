"""The table of languages whose syntax dg-lsp knows.

To add a language, add an entry here and a file `queries/<name>.scm`. Holes in it are then found and filled without a
change elsewhere. The captures that a query file may use are described in `syntax`. Code for one language only, such as
a check by its own compiler or notebooks, is in the module that uses it.

A grammar is imported when it is first needed.
"""

from __future__ import annotations

import builtins
import importlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import tree_sitter

from dg_lsp.core import imports
from dg_lsp.core.offers import Style

# What most languages have, and the default for an unknown language.
QUOTES = "\"'`"
MULTILINE_QUOTES = "`"
BRACKETS = ("([{", ")]}")


class GrammarError(Exception):
    """A grammar can't be loaded. The message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Language:
    """One language: everything but its grammar and its query.

    `grammar` is a module and its function that returns the grammar. `queries` names the query files, whose texts are
    joined. `opens` matches a line that opens a block; it is used where the tree is broken and the line's brackets are
    balanced. `indent` is one indentation level for a file that shows none. In a file whose name ends with one of
    `stub_suffixes`, bodies are meant to be empty.

    `imports` returns the names that a text imports. With `imports_folders`, such a name is a folder, and all of its
    files are imported. `importing` is the style of its imports, if names can be imported for an answer. `marks` is tried on
    each line; it matches text that is rare outside this language and similar ones.

    The rest describes how code is read without a tree. A string is what `strings` matches, or text between `quotes`;
    only the quotes in `multiline_quotes` may span lines. `heredoc` matches the beginning of a here document, up to its
    word. `brackets` are the opening and the closing ones. `outdents` matches lines that are indented less than their
    block. `tag` begins the code in a file that holds other text before it.
    """

    name: str
    grammar: tuple[str, str]
    queries: tuple[str, ...]
    extensions: tuple[str, ...]
    lsp_ids: tuple[str, ...]
    line_comments: tuple[str, ...]
    block_comment: tuple[str, str] | None
    opens: str
    fence: str
    marks: str
    indent: str = "    "
    by_indentation: bool = False
    filenames: tuple[str, ...] = ()
    shebangs: tuple[str, ...] = ()
    stub_suffixes: tuple[str, ...] = ()
    imports: imports.Find = imports.nothing
    imports_folders: bool = False
    importing: Style = ""
    strings: tuple[str, ...] = ()
    quotes: str = QUOTES
    multiline_quotes: str = MULTILINE_QUOTES
    heredoc: str = ""
    brackets: tuple[str, str] = BRACKETS
    outdents: str = ""
    tag: str = ""


# Preprocessor lines and labels, which are indented less than their block.
_C_OUTDENTS = r"#|(?!default\b)\w+:(?!:)"
_C_BLOCK = ("/*", "*/")
# A brace that opens a block. After `=`, `(`, `,`, `:` or `return`, a brace opens a value instead.
_BRACE = r"^(?!.*\breturn\s*\{$)(?:.*[^\s=(,:\[?&|])?\s*\{$"

TABLE: tuple[Language, ...] = (
    Language(
        name="python",
        grammar=("tree_sitter_python", "language"),
        queries=("python",),
        extensions=(".py", ".pyi", ".pyw"),
        lsp_ids=("python",),
        line_comments=("#",),
        block_comment=None,
        opens=r"^\s*(?:async\s+)?(?:def|class|if|elif|else|for|while|try|except|finally|with|match|case)\b.*:$|^\s*\).*:$",
        fence="python",
        marks=r"^\s*(?:async\s+)?def \w+\(.*:$|^\s*class \w+.*:$|^(?:from [\w.]+ )?import \w[\w., ]*$|\bself\.\w"
        r"|^\s*(?:if|elif|for|while|with|try|except|else)\b[^{;\n]*:$|^\s*@\w[\w.]*(?:\(.*\))?$|\b(?:is not|not in|is None)\b",
        by_indentation=True,
        filenames=("SConstruct", "SConscript", "wscript"),
        shebangs=("python",),
        stub_suffixes=(".pyi",),
        imports=imports.python,
        importing="python",
        strings=(r'"""(?:\\.|[^\\])*?(?:"""|\Z)', r"'''(?:\\.|[^\\])*?(?:'''|\Z)"),
        multiline_quotes="",
    ),
    Language(
        name="javascript",
        grammar=("tree_sitter_javascript", "language"),
        queries=("javascript",),
        extensions=(".js", ".mjs", ".cjs", ".jsx"),
        lsp_ids=("javascript", "javascriptreact", "javascript.jsx"),
        line_comments=("//",),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="javascript",
        marks=r"^\s*(?:export )?(?:default )?(?:async )?function\b\*? ?\w+\(|\b(?:const|let|var) [\w{\[][^;\n]* = "
        r"|(?:\)|\b[a-z]\w*) => |[=!]==|\brequire\(['\"]|^\s*(?:import|export)\b.* from ['\"]|\bmodule\.exports\b|\bthis\.\w",
        indent="  ",
        filenames=("Jakefile",),
        shebangs=("node", "nodejs", "bun"),
        imports=imports.javascript,
        importing="script",
    ),
    Language(
        name="typescript",
        grammar=("tree_sitter_typescript", "language_typescript"),
        queries=("javascript", "typescript"),
        extensions=(".ts", ".mts", ".cts"),
        lsp_ids=("typescript",),
        line_comments=("//",),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="typescript",
        marks=r"[\w)\]?]: (?:string|number|boolean|void|any|unknown|never|Promise<|[A-Z]\w*(?:\[\])?)[ ,;)=|]"
        r"|^\s*(?:export )?interface \w+ |^\s*(?:export )?type \w+ =|^import type\b|\bas (?:const|unknown|string)\b"
        r"|^\s*(?:private|public|readonly|protected) \w+[(:?]",
        indent="  ",
        shebangs=("deno", "ts-node", "tsx"),
        stub_suffixes=(".d.ts", ".d.mts", ".d.cts"),
        imports=imports.javascript,
        importing="script",
    ),
    Language(
        name="tsx",
        grammar=("tree_sitter_typescript", "language_tsx"),
        queries=("javascript", "typescript"),
        extensions=(".tsx",),
        lsp_ids=("typescriptreact", "typescript.tsx", "tsx"),
        line_comments=("//",),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="tsx",
        marks=r"\breturn \(?<\w|=> \(?<\w|\bclassName=|^\s*<[A-Z]\w*(?: \w+=\{.*)?/?>|^\s*</?>$",
        indent="  ",
        imports=imports.javascript,
        importing="script",
    ),
    Language(
        name="go",
        grammar=("tree_sitter_go", "language"),
        queries=("go",),
        extensions=(".go",),
        lsp_ids=("go",),
        line_comments=("//",),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="go",
        marks=r"^func (?:\(\w+ \*?\w+(?:\[\w+\])?\) )?\w+\(|^package \w+$|^\s*\w+(?:, \w+)* := |\berr != nil\b"
        r"|^import (?:\(|\")|^type \w+ (?:struct|interface) \{|^\s*for .* := range ",
        indent="\t",
        imports=imports.go,
        imports_folders=True,
        outdents=r"(?!default\b)\w+:$",
    ),
    Language(
        name="rust",
        grammar=("tree_sitter_rust", "language"),
        queries=("rust",),
        extensions=(".rs",),
        lsp_ids=("rust",),
        line_comments=("//",),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="rust",
        marks=r"^\s*(?:pub(?:\(\w+\))? )?(?:async )?fn \w+[(<]|\blet (?:mut )?\w+(?:: [^=;\n]+)? = |^\s*impl\b.*\{$|&mut "
        r"|&self\b|^use [\w:]+|^\s*(?:pub )?(?:struct|enum|trait|mod) \w+|\w+!\(|^\s*#\[\w|\bSome\(|\bOk\(",
        shebangs=("rust-script",),
        imports=imports.rust,
        # A lifetime has a single quote, so only character literals count as strings in single quotes.
        strings=(r"'(?:\\[^'\n]+|[^'\\\n])'",),
        quotes='"`',
        multiline_quotes='"`',
    ),
    Language(
        name="java",
        grammar=("tree_sitter_java", "language"),
        queries=("java",),
        extensions=(".java",),
        lsp_ids=("java",),
        line_comments=("//",),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="java",
        marks=r"^\s*(?:public|private|protected)(?: static)?(?: final)? (?!function\b)[\w<>\[\], ]+[ (;]|\bSystem\.out\b"
        r"|^(?:import|package) [\w.]+(?:\.\*)?;$|^\s*@Override$|^\s*(?:final )?[A-Z]\w*(?:<[\w, <>]*>)? \w+ = "
        r"|^\s*(?:public )?class \w+ .*\{$|\bthrows \w",
        imports=imports.java,
    ),
    Language(
        name="c",
        grammar=("tree_sitter_c", "language"),
        queries=("c",),
        extensions=(".c", ".h"),
        lsp_ids=("c",),
        line_comments=("//",),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="c",
        marks=r"^\s*#\s*(?:include|define|ifdef|ifndef|endif|if)\b|\w->\w|\bNULL\b|\bsizeof\b"
        r"|^\s*(?:static |const |unsigned )*(?:int|char|void|size_t|double|float|long|bool|u?int\d+_t|struct \w+) \*?\w+",
        imports=imports.c,
        outdents=_C_OUTDENTS,
    ),
    Language(
        name="cpp",
        grammar=("tree_sitter_cpp", "language"),
        queries=("c", "cpp"),
        extensions=(".cpp", ".cc", ".cxx", ".c++", ".hpp", ".hh", ".hxx", ".h++", ".ipp", ".tpp"),
        lsp_ids=("cpp", "c++"),
        line_comments=("//",),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="cpp",
        marks=r"\bstd::|^\s*#include <\w+>$|^\s*template ?<|^\s*(?:inline )?namespace \w+ \{|\bnullptr\b|^using \w+ = "
        r"|^\w[\w<>*& ]* \w+::~?\w+\(|^\s*(?:public|private|protected):$|\bconst (?:auto|\w+) ?&|\bauto \w+ =|^class \w+",
        imports=imports.c,
        outdents=_C_OUTDENTS,
    ),
    Language(
        name="csharp",
        grammar=("tree_sitter_c_sharp", "language"),
        queries=("csharp",),
        extensions=(".cs", ".csx"),
        lsp_ids=("csharp", "cs", "c_sharp"),
        line_comments=("//",),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="csharp",
        marks=r"^\s*using (?:static )?[\w.]+;$|^namespace [\w.]+ ?[;{]?$|\{ get; |\bvar \w+ = |\bforeach \(|\bConsole\.\w"
        r"|^\s*(?:public|private|internal|protected)"
        r"(?: (?:static|override|async|readonly|sealed|virtual))* (?!function\b)[\w<>\[\], ?]+[ (;{]"
        r"|\bstring\.\w|\bstring \w+[,)=]|\bnameof\(",
        imports=imports.csharp,
        outdents=_C_OUTDENTS,
    ),
    Language(
        name="ruby",
        grammar=("tree_sitter_ruby", "language"),
        queries=("ruby",),
        extensions=(".rb", ".rake", ".gemspec", ".ru"),
        lsp_ids=("ruby",),
        line_comments=("#",),
        block_comment=("=begin", "=end"),
        opens=r"^\s*(def|class|module|if|unless|while|until|case|when|else|elsif|begin|rescue|ensure)\b.*$"
        r"|\bdo(\s*\|[^|]*\|)?$|\{(\s*\|[^|]*\|)?$",
        fence="ruby",
        marks=r"^\s*def (?:self\.)?\w+[?!=]?(?:\(.*\))?$|\bdo \|.*\|$"
        r"|\{ ?\|\w+(?:, \w+)*\||^\s*@\w+ (?:\|\|)?= "
        r"|^\s*require(?:_relative)? ['\"]|\battr_\w+ :|\.(?:each|map|nil\?|empty\?)\b"
        r"|^\s*(?:elsif|unless|puts)\b|^\s*module [A-Z]",
        indent="  ",
        filenames=("Gemfile", "Rakefile", "Guardfile", "Vagrantfile", "Podfile", "Fastfile"),
        shebangs=("ruby",),
        imports=imports.ruby,
        multiline_quotes=QUOTES,
        heredoc="<<[~-]?",
    ),
    Language(
        name="php",
        grammar=("tree_sitter_php", "language_php"),
        queries=("php",),
        extensions=(".php", ".phtml", ".inc"),
        lsp_ids=("php",),
        line_comments=("//", "#"),
        block_comment=_C_BLOCK,
        opens=_BRACE,
        fence="php",
        marks=r"<\?php|\$\w+->\w|\$\w+ = |\bfunction \w*\([^)]*\$|^\s*use [\w\\]+;$"
        r"|\b(?:public|private|protected|static) function\b",
        shebangs=("php",),
        imports=imports.php,
        multiline_quotes=QUOTES,
        heredoc="<<<",
        tag="<?php",
    ),
    Language(
        name="bash",
        grammar=("tree_sitter_bash", "language"),
        queries=("bash",),
        extensions=(".sh", ".bash", ".bats"),
        lsp_ids=("shellscript", "bash", "sh"),
        line_comments=("#",),
        block_comment=None,
        opens=r"(^|\s|;)(then|do|else|\{)$",
        fence="bash",
        marks=r"^\s*(?:fi|done|esac|then)\b|; (?:then|do)$|\b(?:if|while) \[\[? |^(?:function )?\w+\(\) \{$|^\s*local \w+="
        r"|\[\[ .* \]\]"
        r"|\|\| (?:exit|return|true)\b|\$\{\w+[:#%-]|>&[12]\b|>/dev/null",
        indent="  ",
        filenames=(".bashrc", ".bash_profile", ".bash_aliases", ".profile", "PKGBUILD"),
        shebangs=("bash", "sh", "dash", "ash", "ksh"),
        imports=imports.bash,
        multiline_quotes=QUOTES,
        heredoc="<<-?",
        # Parentheses are left out, because a `)` also ends a pattern of `case`.
        brackets=("{", "}"),
    ),
    Language(
        name="lua",
        grammar=("tree_sitter_lua", "language"),
        queries=("lua",),
        extensions=(".lua", ".rockspec"),
        lsp_ids=("lua",),
        line_comments=("--",),
        block_comment=("--[[", "]]"),
        opens=r"\b(then|do|else|repeat)$|\bfunction\b[^()]*\([^()]*\)$",
        fence="lua",
        marks=r"\blocal (?:function )?\w+|^\s*(?:else)?if .* then$|^\s*(?:for|while) .* do$|^\s*end\)+$|~=|\bnil\b"
        r"|^\s*(?:return )?function\b.*\)$",
        indent="  ",
        filenames=(".luacheckrc",),
        shebangs=("lua", "luajit"),
        imports=imports.lua,
    ),
)

_BY_NAME = {language.name: language for language in TABLE}
_BY_ID = {lsp_id: language for language in TABLE for lsp_id in language.lsp_ids}
_BY_EXTENSION = {extension: language for language in TABLE for extension in language.extensions}
_BY_FILENAME = {name: language for language in TABLE for name in language.filenames}
_BY_SHEBANG = {name: language for language in TABLE for name in language.shebangs}

# Finds python in `#!/usr/bin/env -S python3.12 -u`: the program, or env's first argument that is not an option or assignment.
_SHEBANG = re.compile(r"^\ufeff?#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+|\w+=\S*\s+)*(?:\S*/)?)?([\w+-]*[a-z])", re.ASCII)


def get(name: str) -> Language | None:
    """Return the language with this name, as in `Document.language`, or None."""
    return _BY_NAME.get(name)


def by_id(lsp_id: str) -> Language | None:
    """Return the language with this id in the Language Server Protocol, or None."""
    return _BY_ID.get(lsp_id) or _BY_ID.get(lsp_id.lower())


def for_path(name: str, first_line: str = "") -> Language | None:
    """Return the language of a file by its name, else by the interpreter that its first line names, else None.

    `name` may be a whole path, with either kind of slash. An extension is compared without case if it is unknown as
    written.
    """
    base = re.split(r"[/\\]", name)[-1]
    language = _BY_FILENAME.get(base)
    _, dot, ending = base.rpartition(".")
    if language is None and dot:
        language = _BY_EXTENSION.get(f".{ending}") or _BY_EXTENSION.get(f".{ending.lower()}")
    if language is None and (shebang := _SHEBANG.match(first_line)):
        language = _BY_SHEBANG.get(shebang.group(1))
    return language


@cache
def grammar(language: Language) -> tree_sitter.Language:
    """Return the language's grammar; raise GrammarError if its package is missing or incompatible."""
    module, function = language.grammar
    try:
        return tree_sitter.Language(getattr(importlib.import_module(module), function)())
    except (ImportError, AttributeError, ValueError) as error:
        raise GrammarError(f"the grammar for {language.name} ({module}) can't be loaded: {error}") from error


@cache
def words(language: Language) -> frozenset[str]:
    """Return the keywords of the language's grammar, and for Python also its builtins; nothing without a grammar."""
    try:
        parser = grammar(language)
    except GrammarError:
        return frozenset()
    kinds = (parser.node_kind_for_id(number) or "" for number in range(parser.node_kind_count))
    known = {kind for kind in kinds if kind.isidentifier()}
    return frozenset(known | set(dir(builtins)) if language.name == "python" else known)


@cache
def query(language: Language) -> tree_sitter.Query:
    """Return the language's query, compiled from all of its files."""
    folder = resources.files("dg_lsp.core") / "queries"
    source = "\n".join((folder / f"{name}.scm").read_text(encoding="utf-8") for name in language.queries)
    compiled: tree_sitter.Query = tree_sitter.Query(grammar(language), source)
    return compiled
