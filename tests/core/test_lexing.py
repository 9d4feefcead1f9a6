"""Comments and strings of languages without a grammar: FILL comments, the cursor's place, and texts that must not take long."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import holes, languages, lexing
from dg_lsp.core.values import Document, Hole
from dg_lsp.server import decisions
from tests import marked

# Sections of a file's name and its text, with the holes marked. A FILL without a mark is in a string, an example or the like.
FIXTURE = (Path(__file__).parents[2] / "fixtures/comments.txt").read_text("utf-8")
MARKERS = re.findall(r"(?ms)^==== (\S+) ====\n(.*?)(?=^====|\Z)", FIXTURE)


@pytest.mark.parametrize(("name", "text"), MARKERS, ids=lambda value: str(value)[:24])
def test_a_marker_is_a_whole_comment_outside_of_strings_and_examples(name: str, text: str) -> None:
    for line_end in ("\n", "\r\n", "\r"):
        _, expected = marked.holes(text.replace("\n", line_end), "")
        document = Document(f"file:///a/{name}", "", marked.holes(text.replace("\n", line_end), "")[0].text)
        found = holes.markers(document, None)
        assert marked.draw(document, found) == marked.draw(document, [Hole(span, "marker") for span in expected])


@pytest.mark.parametrize(
    "name",
    [
        *("a.json", "a.jsonl", "a.geojson", "a.ipynb", "a.csv", "a.tsv", "a.txt", "a.log", "a.diff", "a.patch", "a.min.css"),
        *("package-lock.json", "yarn.lock", "Cargo.lock", "pnpm-lock.yaml", "go.sum", "a.lock.hcl", "a.js.map", "a.snap"),
    ],
)
def test_data_has_no_markers_and_a_reason(name: str) -> None:
    text = "# FILL\n// FILL\n/* FILL */\n-- FILL\n; FILL\n<!-- FILL: a -->\n"
    document = Document(f"file:///a/{name}", "", text)
    assert holes.markers(document, None) == ()
    assert holes.unread(document).startswith("holds data")
    assert holes.unread(replace(document, text="x = FILLER\n")) == ""


def test_a_comment_that_may_be_in_a_string_is_left_alone_and_has_a_reason() -> None:
    document = Document("file:///a/a.kt", "", "val a = @ `b\n// FILL: c\n")
    assert holes.markers(document, None) == ()
    assert holes.unread(document).startswith("has FILL comments that may be part of a string")


@pytest.mark.parametrize(
    "text",
    [
        "`a\n$0`\n",
        "'a\n$0\nb'\n",
        "a = @('A')\n$0\nA\n",
        "x <<~eof\n$0\neof\n",
        "a \\\n$0\n",
        "a \\\r\n$0\r\n",
        "q{ $0 }\n",
        "/a $0/\n",
        "'a $0'\n",
    ],
)
def test_a_string_that_the_table_lacks_keeps_its_text(text: str) -> None:
    document = Document("file:///a/a.zig", "", text.replace("$0", "// FILL: a"))
    assert holes.markers(document, None) == ()
    own = Document("file:///a/a.zig", "", "it's `a` << 'b'\n// FILL: it's (a)\n")
    assert len(holes.markers(own, None)) == 1


def test_a_file_s_language_is_that_of_its_editor_then_of_its_name_then_of_its_first_line() -> None:
    def language(uri: str, text: str = "", language_id: str = "") -> lexing.Lexer | None:
        return languages.lexer(Document(uri, "", text, language_id=language_id))

    assert language("untitled:Untitled-1", language_id="kotlin") is lexing.named("kotlin")
    assert language("file:///a/b.txt", language_id="SQL") is lexing.named("sql")
    assert language("file:///a/b.kt", language_id="plaintext") is lexing.named("kotlin")
    assert language("file:///a/b.kt#cell") is lexing.named("kotlin")
    assert language("file:///a/B.KT") is lexing.named("kotlin")
    assert language("file:///a/b", "#!/usr/bin/env fish\n") is lexing.named("fish")
    assert language("file:///a/b", "#!/usr/bin/perl -w\n") is lexing.named("perl")
    assert language("file:///a/b.py", language_id="python") is lexing.named("python")
    # What an editor says of data is less than the name says.
    assert language("file:///a/deno.json", language_id="json") is lexing.named("jsonc")
    assert language("untitled:Untitled-1", language_id="json") is lexing.named("json")


@pytest.mark.parametrize("language", languages.TABLE, ids=lambda language: language.name)
def test_each_language_with_a_grammar_has_its_comments_in_the_table_too(language: languages.Language) -> None:
    blocks = [language.block_comment] if language.block_comment else []
    for opening, closing in (*((mark, "") for mark in language.line_comments), *blocks):
        text = f"{opening} a\n{closing}"
        (token,) = lexing.tokens(text, lexing.named(language.name))
        assert (token.kind, text[token.inner.start : token.inner.end].strip()) == ("comment", "a")


# JSON with comments, and files in which a word may begin a comment.
WITH_COMMENTS = [
    *("tsconfig.json", "tsconfig.app.json", "tsconfig-base.json", "jsconfig.json", ".vscode/tasks.json", ".eslintrc"),
    *(".devcontainer/devcontainer.json", ".babelrc", "a.jsonc", "deno.json", "a.code-workspace", "a.code-snippets"),
]
WITH_WORDS = ["requirements.txt", "requirements-dev.txt", "requirements/dev.txt", ".bazelrc"]

# Cursors: in a comment, in a string, and where code is, as far as a text that is typed can say.
CURSORS = [
    ("a.kt", "val a = 1 // b$0\n", "comment"),
    ("a.kt", "val a = 1 $0// b\n", "code"),
    ("a.kt", "val a = 1 /* b */$0\n", "code"),
    ("a.kt", "val a = 1 /* b\n * c $0\nfun d() {}\n", "comment"),
    ("a.kt", 'val a = "b $0\nval c = 1\n', "string"),
    ("a.kt", 'val a = "b ${c$0}"\n', "code"),
    ("a.kt", 'val a = "b ${c} $0"\n', "string"),
    ("a.kt", 'val a = """\nb // $0\n"""\n', "string"),
    ("a.kt", 'val a = "//"\nval b = $0\n', "code"),
    ("a.swift", 'let a = "b \\($0)"\n', "code"),
    ("a.swift", 'let a = "b \\(c) $0"\n', "string"),
    ("a.dart", "final a = 'it\\'s $0';\n", "string"),
    ("a.dart", "final a = '${b$0}';\n", "code"),
    ("a.scala", "val a = 'b' + $0\n", "code"),
    ("a.groovy", "/** a\n $0 */\n", "comment"),
    ("a.hs", "a' = b' -- c $0\n", "comment"),
    ("a.hs", "a' = b' + $0\n", "code"),
    ("a.hs", "a --> $0\n", "code"),
    ("a.ml", "let a = (* b $0 *)\n", "comment"),
    ("a.ml", "let f (x : 'a) = $0\n", "code"),
    ("a.ex", 'a = "b #{$0}"\n', "code"),
    ("a.ex", "a = 1 # b $0\n", "comment"),
    ("a.erl", "f() -> % a$0\n", "comment"),
    ("a.clj", '(a "b $0")\n', "string"),
    ("a.clj", "(a) ; b $0\n", "comment"),
    ("a.lisp", "#| a $0 |#\n", "comment"),
    ("a.vim", '" a $0\n', "comment"),
    ("a.vim", 'let a = "b$0"\n', "string"),
    ("a.tex", "a \\% $0\n", "code"),
    ("a.tex", "a % b $0\n", "comment"),
    ("a.f90", "x = 1 ! a $0\n", "comment"),
    ("a.sql", "SELECT 1 -- a $0\n", "comment"),
    ("a.sql", "SELECT 'it''s $0'\n", "string"),
    ("a.sql", "SELECT 'it''s' $0\n", "code"),
    ("a.sql", "INSERT INTO p VALUES ('C:\\', '-- $0', 3);\n", "string"),
    ("a.r", "a <- 1 # b$0\n", "comment"),
    ("a.jl", "a = b' + $0\n", "code"),
    ("a.jl", "#= a $0 =#\n", "comment"),
    ("a.pl", "my $n = $#a; $0\n", "code"),
    ("a.pl", "# a $0\n", "comment"),
    ("a.ps1", "<# a\n $0 #>\n", "comment"),
    ("a.ps1", '$a = "b $($0)"\n', "code"),
    ("a.bat", "rem a $0\n", "comment"),
    ("a.bat", "remove $0\n", "code"),
    ("CMakeLists.txt", "set(a) # b $0\n", "comment"),
    ("Dockerfile", "RUN a # b $0\n", "code"),
    ("Dockerfile", "# a $0\n", "comment"),
    ("Makefile", "a: b # c $0\n", "comment"),
    ("a.yaml", "a: it's $0\n", "code"),
    ("a.yaml", "a: b # c $0\n", "comment"),
    ("a.yaml", "run: |\n  a # b $0\n", "code"),
    ("a.yaml", 'a: "b $0"\n', "string"),
    ("a.toml", "a = 1 # b $0\n", "comment"),
    ("a.ini", "; a $0\n", "comment"),
    ("a.html", "<!-- a $0 -->\n", "comment"),
    ("a.html", "<p>it's $0</p>\n", "code"),
    ("a.html", "<script>\n// a $0\n</script>\n", "comment"),
    ("a.vue", "<script>\nconst a = 'b'; $0\n</script>\n", "code"),
    ("a.vue", '<script setup generic="T extends Record<string, X>">\nconst a = "<!-- $0"\n</script>\n', "string"),
    ("a.svelte", "<style>\n/* a $0 */\n</style>\n", "comment"),
    ("a.css", "a { /* b $0 */ }\n", "comment"),
    ("a.scss", "a: url(http://b); $0\n", "code"),
    ("a.scss", "// a $0\n", "comment"),
    ("a.md", "```c\n// a $0\n```\n", "code"),
    ("a.md", "<!-- a $0 -->\n", "comment"),
    ("a.md", "# a $0\n", "code"),
    ("a.j2", "{# a $0 #}\n", "comment"),
    ("a.hbs", "{{!-- a $0 --}}\n", "comment"),
    ("a.zig", "// a $0\n", "comment"),
    ("a.nim", "#[ a $0 ]#\n", "comment"),
    ("a.pas", "{ a $0 }\n", "comment"),
    ("a.pas", "s := 'it''s $0';\n", "string"),
    ("a.adb", "a -- b $0\n", "comment"),
    ("a.asm", "mov ax, 1 ; a $0\n", "comment"),
    ("a.tf", 'a = "${$0}"\n', "code"),
    ("a.tf", "a = 1 # b $0\n", "comment"),
    ("a.graphql", '"""\na $0\n"""\n', "string"),
    ("a.proto", "int32 a = 1; // b $0\n", "comment"),
    ("a.unknown", "// a $0\n", "code"),
    ("a.kt", 'val a = "b ${c.$0}"\n', "code"),
    ("a.kt", 'val a = "b ${$0}"\n', "code"),
    ("a.kt", 'val a = "b ${$0"\n', "code"),
    ("a.kt", 'val a = "b ${c.map { $0 }}"\n', "code"),
    ("a.kt", 'val a = "b ${f("x $0")}"\n', "string"),
    ("a.kt", 'val a = """b ${$0}"""\n', "code"),
    ("a.kt", 'val a = """\nb ${$0\n"""\n', "code"),
    ("a.kt", 'println("Total: ${total$0")\n', "code"),
    ("a.kt", 'val a = "b $na$0"\n', "code"),
    ("a.kt", 'val a = "b \\${$0}"\n', "string"),
    ("a.dart", "var a = 'b ${$0}';\n", "code"),
    ("a.dart", "var a = 'b ${c.$0';\n", "code"),
    ("a.dart", "var a = 'b $na$0';\n", "code"),
    ("a.dart", "var a = r'b ${$0}';\n", "string"),
    ("a.dart", "var a = '''b ${$0}''';\n", "code"),
    ("a.dart", 'var a = """\nb ${$0}""";\n', "code"),
    ("a.swift", 'let a = "b \\(c.$0"\n', "code"),
    ("a.swift", 'let a = """\n  \\($0)\n  """\n', "code"),
    ("a.swift", 'let a = #"b \\#($0)"#\n', "code"),
    ("a.swift", 'let a = #"b \\($0)"#\n', "string"),
    ("a.swift", 'let a = "b \\(f("x $0"))"\n', "string"),
    ("a.swift", 'let a = "b \\(f(x)) $0"\n', "string"),
    ("a.scala", 'val a = s"b ${$0}"\n', "code"),
    ("a.scala", 'val a = s"b ${c.$0"\n', "code"),
    ("a.scala", 'val a = s"""b ${$0}"""\n', "code"),
    ("a.scala", 'val a = f"b ${$0}%2.2f"\n', "code"),
    ("a.scala", 'val a = s"b $na$0"\n', "code"),
    ("a.ex", 'a = "b #{c.$0"\n', "code"),
    ("a.ex", "a = ~s(b #{$0})\n", "code"),
    ("a.ex", 'a = """\nb #{$0}\n"""\n', "code"),
    ("a.ex", "a = ~S(b #{$0})\n", "string"),
    ("a.ex", "a = 'b #{$0}'\n", "code"),
    ("a.ex", 'a = ~s"b #{$0}"\n', "code"),
    ("a.ex", 'a = ~H"""\n<p>{$0}</p>\n"""\n', "string"),
    ("a.cr", 'a = "b #{$0}"\n', "code"),
    ("a.cr", 'a = "b #{c.$0"\n', "code"),
    ("a.cr", "a = %(b #{$0})\n", "code"),
    ("a.cr", "a = %q(b #{$0})\n", "string"),
    ("a.cr", "a = `b #{$0}`\n", "code"),
    ("a.cr", "a = <<-EOS\n  b #{$0}\n  EOS\n", "code"),
    ("a.groovy", 'def a = "b ${$0}"\n', "code"),
    ("a.groovy", 'def a = "b ${c.$0"\n', "code"),
    ("a.groovy", 'def a = """\nb ${$0}\n"""\n', "code"),
    ("a.groovy", "def a = /b ${$0}/\n", "code"),
    ("a.groovy", "def a = $/b ${$0}/$\n", "code"),
    ("a.groovy", "def a = 'b ${$0}'\n", "string"),
    ("a.groovy", 'def a = "b $na$0"\n', "code"),
    ("a.pl", 'my $a = "b @{[ $0 ]}";\n', "code"),
    ("a.pl", 'my $a = "b @{[ $0";\n', "code"),
    ("a.pl", 'my $a = "b ${\\ $0}";\n', "code"),
    ("a.pl", 'my $a = "b $h{$0}";\n', "code"),
    ("a.pl", "my $a = qq{b @{[ $0 ]}};\n", "code"),
    ("a.pl", 'my $a = <<"E";\nb @{[ $0 ]}\nE\n', "code"),
    ("a.pl", 'my $a = "b $na$0";\n', "code"),
    ("a.pl", "my $a = 'b @{[ $0 ]}';\n", "string"),
    ("a.jl", 'a = "b $($0)"\n', "code"),
    ("a.coffee", 'a = "b #{$0}"\n', "code"),
    ("a.nix", 'a = "b ${$0}";\n', "code"),
    ("a.tf", 'a = "b ${$0}"\n', "code"),
    ("a.nim", 'a = fmt"b {$0}"\n', "code"),
    ("a.fs", 'let a = $"b {$0}"\n', "code"),
    ("a.fs", 'let a = "b {$0}"\n', "string"),
    ("a.gd", 'a = "b {$0}"\n', "string"),
    ("a.vala", 'a = @"b $($0)";\n', "code"),
    ("a.hx", "a = 'b ${$0}';\n", "code"),
    ("a.v", "fn a() {\n s := 'b ${$0}'\n}\n", "code"),
    ("a.pyx", 'a = f"b {$0}"\n', "code"),
    ("a.jq", '"b \\($0)"\n', "code"),
    ("a.nu", '$"b ($0)"\n', "code"),
    ("a.fish", 'echo "b $($0)"\n', "code"),
    ("a.bicep", "var a = 'b ${$0}'\n", "code"),
    ("a.jsonnet", '{ a: "b %s" % $0 }\n', "code"),
    ("a.scss", 'a: "b #{$0}";\n', "code"),
    ("a.res", "let a = `b ${$0}`\n", "code"),
    ("a.lean", 'def a := s!"b {$0}"\n', "code"),
    ("a.svelte", "<script>\nlet a = `b ${$0}`\n</script>\n", "code"),
    ("a.vue", "<script>\nlet a = `b ${$0`\n</script>\n", "code"),
    ("a.ex", 'a = "b" <> $0\n', "code"),
    ("a.raku", 'my $a = "b {$0}";\n', "code"),
    ("a.typ", '#let a = "b"\n$0\n', "code"),
    ("a.vim", "let a = $'b {$0}'\n", "code"),
    ("a.vb", 'a = $"b {$0}"\n', "code"),
    ("a.elv", 'echo "b $0"\n', "string"),
    ("a.el", '(format "b $0")\n', "string"),
    ("a.erl", '"b $0"\n', "string"),
    ("a.zig", '"b {$0}"\n', "string"),
    ("a.qml", "a: `b ${$0}`\n", "code"),
    ("a.d", 'i"b $($0)"\n', "code"),
    ("a.r", 'glue("b {$0}")\n', "string"),
    ("a.vue", '<p :class="$0"></p>\n', "code"),
    ("a.vue", '<p :class="{a: b, $0}"></p>\n', "code"),
    ("a.vue", '<p @click="f($0)"></p>\n', "code"),
    ("a.vue", '<p v-if="$0"></p>\n', "code"),
    ("a.vue", '<p v-if="a === \'$0\'"></p>\n', "string"),
    ("a.vue", '<p v-for="x in $0"></p>\n', "code"),
    ("a.vue", '<p v-model.trim="$0"></p>\n', "code"),
    ("a.vue", '<p #item="{ $0 }"></p>\n', "code"),
    ("a.vue", '<p class="$0"></p>\n', "string"),
    ("a.vue", "<p>{{ $0 }}</p>\n", "code"),
    ("a.svelte", "<p on:click={$0}></p>\n", "code"),
    ("a.svelte", "<p on:click={() => f($0)}></p>\n", "code"),
    ("a.svelte", '<p class="{$0}"></p>\n', "code"),
    ("a.svelte", '<p class="a {b ? \'c\' : $0}"></p>\n', "code"),
    ("a.svelte", '<p class="a$0"></p>\n', "string"),
    ("a.svelte", '<p on:click="{() => $0}"></p>\n', "code"),
    ("a.html.j2", '<a href="{{ $0 }}">\n', "code"),
    ("a.html.j2", '<a class="{% if $0 %}a{% endif %}">\n', "code"),
    ("a.html.j2", '<a class="{% if x %}a$0{% endif %}">\n', "string"),
    ("a.html.j2", "<a>{{ x }}</a>{% if $0 %}\n", "code"),
    ("a.html.j2", "{{ x | f($0) }}\n", "code"),
    ("a.twig", '<a href=\'{{ path("$0") }}\'>\n', "string"),
    ("a.twig", '<a href="{{ $0 }}">\n', "code"),
    ("a.html", '<a href="{% url $0 %}">\n', "code"),
    ("a.html", '<a href="{{ $0 }}">\n', "code"),
    ("a.html.erb", '<a href="<%= $0 %>">\n', "code"),
    ("a.html.erb", '<a href="<%= x > 1 ? $0 : 2 %>">\n', "code"),
    ("a.html.erb", '<a href="<%= x %>$0">\n', "string"),
    ("a.html.erb", "<p><%= $0 %></p>\n", "code"),
    ("a.ejs", "<a href='<%- $0 %>'>\n", "code"),
    ("a.blade.php", '<a href="{{ $0 }}">\n', "code"),
    ("a.blade.php", '<a href="{!! $0 !!}">\n', "code"),
    ("a.blade.php", '<x-a :b="$0">\n', "code"),
    ("a.blade.php", "<a @class([$0])>\n", "code"),
    ("a.cshtml", '<a href="@($0)">\n', "code"),
    ("a.cshtml", '<a href="@Model.$0">\n', "code"),
    ("a.cshtml", '<a href="@Url.Action($0)">\n', "code"),
    ("a.razor", '<a @onclick="$0">\n', "code"),
    ("a.razor", '<a @onclick="() => f($0)">\n', "code"),
    ("a.hbs", '<a href="{{$0}}">\n', "code"),
    ("a.hbs", '<a href="{{#if $0}}a{{/if}}">\n', "code"),
    ("a.html", '<a [x]="$0">\n', "code"),
    ("a.html", '<a (click)="f($0)">\n', "code"),
    ("a.html", '<a *ngIf="$0">\n', "code"),
    ("a.html", '<a [(ngModel)]="$0">\n', "code"),
    ("a.html", '<a x-on:click="$0">\n', "code"),
    ("a.html", '<a x-data="{ $0 }">\n', "code"),
    ("a.html", '<a onclick="$0">\n', "code"),
    ("a.html", "<a @click='$0'>\n", "code"),
    ("a.html", '<a class="$0">\n', "string"),
    ("a.html", "<a title='it $0'>\n", "string"),
    ("a.astro", "---\n---\n<a href={$0}>\n", "code"),
    ("CMakeLists.txt", 'set(A "${$0}")\n', "code"),
    ("CMakeLists.txt", 'set(A "${CMAKE_$0}")\n', "code"),
    ("CMakeLists.txt", 'set(A "a $0")\n', "string"),
    ("CMakeLists.txt", 'set(A "$<$0>")\n', "code"),
    ("CMakeLists.txt", 'set(A "$ENV{$0}")\n', "code"),
    ("Makefile", "A = $($0)\n", "code"),
    ("Makefile", 'A = "$($0)"\n', "code"),
    ("Makefile", 'a:\n\techo "$($0)"\n', "code"),
    ("Makefile", "a:\n\techo '${$0}'\n", "code"),
    ("a.zsh", 'echo "${$0}"\n', "code"),
    ("a.zsh", 'echo "$($0)"\n', "code"),
    ("a.zsh", 'echo "$na$0"\n', "code"),
    ("a.zsh", 'echo "a $0"\n', "string"),
    (".zshrc", 'echo "${$0}"\n', "code"),
    (".zshrc", "# a $0\n", "comment"),
    ("a.fish", 'echo "$na$0"\n', "code"),
    ("a.kt", 'val a = "${$0}"\n', "code"),
    ("a.kt", 'val a = """\n${$0}\n"""\n', "code"),
    ("a.swift", 'let a = "\\($0)"\n', "code"),
    ("a.dart", 'var a = "${$0}";\n', "code"),
    ("a.scala", 'val a = s"${$0}"\n', "code"),
    ("a.scala", 'val a = "${$0}"\n', "string"),
    ("a.groovy", 'def a = "${$0}"\n', "code"),
    ("Jenkinsfile", 'sh "${$0}"\n', "code"),
    ("Jenkinsfile", 'sh """\n  a ${$0}\n"""\n', "code"),
    ("a.ex", 'a = "#{$0}"\n', "code"),
    ("a.cr", 'a = "#{$0}"\n', "code"),
    ("a.pl", 'my $a = "@{[ $0 ]}";\n', "code"),
    ("a.nix", "a = ''\n  ${$0}\n'';\n", "code"),
    ("a.nix", 'a = "${$0}";\n', "code"),
    ("a.tf", "a = <<EOF\n${$0}\nEOF\n", "code"),
    ("a.tf", 'a = "%{ if $0 }"\n', "code"),
    ("a.ps1", '$a = "$($0)"\n', "code"),
    ("a.ps1", '$a = "$na$0"\n', "code"),
    *((name, "{ // a $0\n}\n", "comment") for name in WITH_COMMENTS),
    *((name, "# a $0\n", "comment") for name in WITH_WORDS),
    *((name, "a=b # a $0\n", "comment") for name in WITH_WORDS),
    ("x/tasks.json", '{ "a": 1 // $0\n}\n', "code"),
    ("package.json", '{ "a": 1 // $0\n}\n', "code"),
    ("go.mod", "require a v1 // $0\n", "comment"),
    ("go.work", "use ./a // $0\n", "comment"),
    ("a.http", "# a $0\nGET http://a\n", "comment"),
    ("a.http", "### a\n// $0\nGET http://a\n", "comment"),
    ("a.http", "GET http://a/$0\n", "code"),
    ("a.rest", "### a\n// $0\nGET http://a\n", "comment"),
    ("a.rest", "a\n=\n\n.. b $0\n", "comment"),
    *((name, "# a $0\n", "comment") for name in (".gitattributes", ".env", ".env.local", ".flaskenv")),
    ("MODULE.bazel", "# a $0\n", "comment"),
    ("Jenkinsfile", "// a $0\n", "comment"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "scope"), CURSORS, ids=lambda value: str(value)[:24])
def test_the_cursor_s_place_in_a_language_without_a_grammar(name: str, text: str, scope: str) -> None:
    for line_end in ("\n", "\r\n", "\r"):
        head, _, tail = text.replace("\n", line_end).rpartition("$0")
        offset, document = len(head), Document(f"file:///a/{name}", "", head + tail)
        assert decisions.scope_at(document, None, offset) == scope


LEXERS = list(dict.fromkeys(lexing._table()[0].values()))
PIECES = [
    "/*", "*/", "//", "(*", "*)", "{-", "-}", "<!--", "-->", "{#", "#}", "{{!--", "--}}", "#|", "|#", "--[[", "]]", "#=",
    "=#", "#[", "<#", "#>", "/+", "/-", "-/", '"', "'", '"""', "'''", "`", "```\n", "~~~", "\\", "${", "#{", "\\(", "$(", "}",
    ")", "{", "(", '@"\n', '#"', 'r"(', "<<A\n", "<<~'B'\n", "A\n", "=begin\n", "=end\n", "=cut\n", "%{\n", "%}\n", "~s(",
    "{|", "|}", "[[", "$/", "///", "0'", "<script>", "</script", "<script ", "<style>", "---\n", "key: |\n", "- |\n", "  a\n",
    "    a\n", "\n\n", "::\n", ".. a::\n", ".. a\n", "-#", "#", ";", "%", "!", "--", '"a', "='", '\\"', "\\verb|",
    "\\begin{minted}", "{%raw%}", '{{"', "url(", "a://", "#+begin_a\n", "rem ", " ", "- ", "=/", "%(", "q{", "q ", "set a {",
    "key: a\n", "\\py[", "\\py{a}", ":a\n", "a.\n", "[source]\n", "[a]\n--\n", "define\n", "$$", "#<<", "e'", "q'",
    "{'", "|||\n", "[r|", "[", "- a\n", "&a ", "{%#", "{/*", "(;", "_by_lua_block {", "@(", "@{[", "qq{", "%q(",
    "%{", "~S", 'f"', '$"', "#{", "\\#(", "}", "<<-A\n",
    ' :a="', " on='", '="', "={{", "{%", "<%=", "<#if ", "@a(", "$<", " style='", "println!(", "$'", "%>",
    "<script type='a'>", "<script type=json ", "<a>", " <b>", "</a>", "AS $$", "DELIMITER $$\n", "“", "{{{{a}}}}",
    "<template lang='pug'>", "``", "``` ", "`\n",
]  # fmt: skip


@given(pieces=st.lists(st.sampled_from((*PIECES, "a", "\n", "\r\n", "\r")), max_size=20), lexer=st.sampled_from(LEXERS))
def test_tokens_are_in_order_and_hold_what_is_between_their_delimiters(pieces: list[str], lexer: lexing.Lexer) -> None:
    text, at = "".join(pieces), 0
    for token in lexing.tokens(text, lexer):
        assert at <= token.span.start < token.span.end <= len(text)
        assert token.span.holds(token.inner)
        at = token.span.end


# What begins a literal and never ends it, or looks so: beginning, repeated piece and end.
ENDLESS = [
    ("", "<<", ""), ("", " <<", ""), ("", "$x << 3; ", ""), ("", "<textarea ", ""), ("", "<title ", ""), ("", "<script ", ""),
    ("/* ", "*", ""), ("/+ ", "+", ""), ("(* ", "*", ""), ("(; ", ";", ""), ("/' ", "'", ""), ("<!-- ", "-", ""),
    ("{/* ", "*", ""), ('x="', '\\"', ""), ("a: ", "!: ", ""), ("\\begin{", "py", ""), ("", "-", "`"), ("", ".", "`"),
    ('x="', "@a", ""), ('x="', "{{ '", ""), ("", " x-", ""), ("", " :a='{", ""), ('set(A "', "$<", ""), ("", "println!(", ""),
    ("", "<script type=", ""), ("", " <a ", ""), ("<a>", "{", ""), ("", " <a>{", ""), ("", "AS $a$ ", ""), ("", "{{{{a", ""),
]  # fmt: skip
CHARS = 20_000
ENOUGH_S = 0.02  # shorter times are too uncertain to compare; a text of this size that takes less blocks nothing


@pytest.mark.parametrize(
    "lexer",
    [pytest.param(lexer, marks=() if number % 12 == 0 else pytest.mark.slow) for number, lexer in enumerate(LEXERS)],
)
def test_no_text_takes_more_than_linear_time(lexer: lexing.Lexer) -> None:
    """Compare the processor time of a text and of one twice as long: about 2 in linear time, about 4 in quadratic time."""
    pairs = (f"{left}{right}" for left, right in pairwise(PIECES))
    pieces = (*PIECES, *(pair for pair in pairs if lexer.code.search(pair)))
    for lead, piece, tail in (*ENDLESS, *(("", piece, "") for piece in pieces)):
        assert _growth(lexer, lead, piece, tail) < 3, (lead, piece, tail)


@pytest.mark.parametrize(("lead", "piece", "tail"), ENDLESS)
@pytest.mark.parametrize("language", ["perl", "html", "c", "vim", "yaml", "latex", "asciidoc", "d", "ocaml"])
def test_a_literal_that_does_not_end_takes_linear_time(language: str, lead: str, piece: str, tail: str) -> None:
    assert _growth(lexing.named(language), lead, piece, tail) < 3


def _growth(lexer: lexing.Lexer, lead: str, piece: str, tail: str) -> float:
    """Return how much longer twice as much text takes, by the fastest of up to five tries; 0 for a short time."""

    def seconds(n_chars: int) -> float:
        text = f"{lead}{piece * (n_chars // len(piece))}{tail}"
        start = time.process_time()
        list(lexing.sure_comments(text, lexer))
        return time.process_time() - start

    if (one := seconds(CHARS)) < ENOUGH_S:
        return 0
    two = seconds(2 * CHARS)
    for _ in range(4):
        if two < 3 * one:
            break
        # The shortest time has the least of other work on this machine.
        one, two = min(one, seconds(CHARS)), min(two, seconds(2 * CHARS))
    return two / one
