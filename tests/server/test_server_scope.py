"""An expression in an interpolated string is code, complete and half typed; the string around it is a string."""

from __future__ import annotations

import pytest

from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.values import Document
from dg_lsp.server import decisions

# `¦` is the cursor.
CODE = {
    "rust": [
        'fn f() { println!("{¦}"); }',
        'fn f() { let a = format!("{total_¦}"); }',
        'fn f() { let a = format!("{total:>wid¦}"); }',
        'fn f() { let a = format!("{b} {total_¦}", b = 1); }',
        'fn f() {\n    assert_eq!(\n        a,\n        b,\n        "{total_¦}",\n    );\n}',
        'fn f() { println!("{total_¦"); }',
        'fn f() { info!(target: "x", "{total_¦}"); }',
        'fn f() { println!("{total_¦',
        'fn f() {\n    tokio::select! {\n        a = b() => println!("{a¦}"),\n    }\n}',
    ],
    "python": [
        'print(f"Total: {total_¦}")',
        'print(f"Total: {¦}")',
        'print(f"Total: {a.¦}")',
        'print(f"Total: {a.¦")',
        'print(f"Total: {a.¦',
        "print(rf'Total: {a.¦')",
        'print(f"{a} and {b¦")',
        'print(f"{a} and {b["k"].¦")',
        'print(f"{a} and {b["k"]:>{width¦}}")',
        'x = f"""\n  a {b.¦\n  c\n"""\ny = 1',
        'x = f"{", ".join(f"{k}={v¦}" for k in d)}"',
        'def f(a):\n    return f"{a.¦\n\n\ndef g():\n    return "x"',
        'x = t"{total_¦}"',
        'x = (\n    "a"\n    f"b {c.¦}"\n)',
    ],
    "javascript": [
        "const s = `a ${b.¦} c`;",
        "const s = `a ${¦}`;",
        "const s = `a ${b.¦`;",
        "const s = `a ${b.¦;\nconst t = `c ${d}`;",
        "const s = `a ${f(`x ${y¦}`)}`;",
        "const s = `a ${f(`x ${y¦`)}`;",
        "const s = `\n  <li>${item.¦\n  </li>\n`;\nfoo();",
        "const s = `a ${items.map((x) => { return x.¦ })}`;",
        "const s = tag`a ${b¦}`;",
    ],
    "typescript": [
        "const s = `a ${(b as string).¦} c`;",
        "const s = `a ${b.¦`;\nconst t: string = `c ${d}`;",
        "type Route = `/${Base¦}`;",
        "const s: string = `a ${x ? `b ${y.¦}` : 'c'}`;",
        "class A {\n  f() {\n    return `a ${this.¦`;\n  }\n}",
    ],
    "tsx": [
        "const s = <a b={`x ${y.¦}`}/>;",
        "const s = <a b={`x ${y¦`}/>;",
        "const s = <a className={`x ${cond && ¦}`}>don't</a>;",
        "const s = () => <p>{`a ${b.¦}`}</p>;",
        "const s = <a b={`x ${f({ k: v¦ })}`}/>;",
    ],
    "ruby": [
        'puts "Total: #{total_¦} x"',
        'puts "Total: #{¦} x"',
        'puts "Total: #{a.¦"',
        'def f\n  puts "Total: #{a.¦"\nend\n\ndef g\n  1\nend',
        "x = <<~EOS\n  a #{b.¦} c\nEOS",
        "x = <<~EOS\n  a #{b.¦\nEOS",
        "x = `ls #{d¦}`",
        "x = %Q(a #{b¦})",
        'x = :"a #{b¦}"',
        "x = %W[a #{b¦}]",
        'puts "a #{b.map { |x| "c #{x.¦}" }}"',
        'puts "a #{b.map { |x| x.¦"',
    ],
    "bash": [
        'echo "a $na¦ b"',
        'echo "a $na¦',
        "cat <<EOF\na $na¦\nEOF",
        'echo "a $(l¦s) b"',
        'echo "a $(¦) b"',
        'echo "a ${x¦} b"',
        'echo "a ${x¦"',
        'echo "a ${y:-$(l¦)}"',
        'echo "a $((x + ¦)) b"',
        'echo "a `l¦s` b"',
        'f() {\n  echo "a $(git ¦"\n}',
        'f() {\n  echo "a $(git ¦\n}',
        "cat <<EOF\na $(l¦s) b\nEOF",
        "cat <<EOF\na ${l¦\nEOF",
        'echo "a $(echo "b $(c¦)")"',
    ],
    "csharp": [
        'var s = $"a {b¦} c";',
        'var s = $"a {b.¦} c";',
        'var s = $"a {¦} c";',
        'var s = $"a {b.¦";',
        'var s = $@"a {b.¦} c";',
        'var s = @$"a {b¦:N2} c";',
        'var s = $"""a {b¦} c""";',
        'var s = $"""\n  a {b.¦}\n  """;',
        'var s = $$"""a {{b¦}} c""";',
        'var s = $$"""\n  a {{b.¦}}\n  """;',
        'var s = $"a {f($"b {c.¦}")}";',
        'class A {\n  string F() => $"{x.¦";\n  int G() { return 1; }\n}',
        'class A { void F() { Console.WriteLine($"a {b.¦"); } }',
        'var s = $"a {b?.¦";\nint y = 1;',
    ],
    "php": [
        '<?php\necho "a $x->¦";',
        '<a href="<?= $a->¦ ?>">',
        '<a class="<?php echo ¦ ?>">',
        '<?php\necho "a $x->na¦";',
        '<?php\n$s = "a $na¦ c";',
        '<?php\n$s = "a $x->na¦ c";',
        '<?php\n$s = "a $na¦\n$b = 1;',
        '<?php\n$s = "a {$x->¦} c";',
        '<?php\n$s = "a {$x->b¦} c";',
        '<?php\n$s = "a {$x->¦";',
        '<?php\n$s = "a {$x->¦',
        '<?php\n$s = "a ${x¦} c";',
        '<?php\n$s = "a ${x¦";',
        "<?php\n$s = <<<X\n a {$x->¦} c\nX;",
        "<?php\n$s = <<<X\n{$x->¦\nX;",
        "<?php\n$s = `ls {$x¦}`;",
        "<?php\nfunction f() {\n  return \"a {$x['k']} {$y->¦;\n}",
    ],
}
STRINGS = {
    "python": [
        'print(f"Total¦: {total_}")',
        'print(f"Total: {total_}¦")',
        'print(f"Total: {total_}, and¦',
        'print(f"Total: {total_}, and¦")\nx = 1',
        'print("Total: {total_¦}")',
        'print(f"{{a¦}}")',
        'print(f"{a:>1¦0}")',
        'print(f"{a:.2¦}")',
        'print(f"{a["k¦"]}")',
        'print(f"{a["k¦',
    ],
    "javascript": ["const s = `a ¦${b} c`;", "const s = `a ${b} ¦`;", "const s = `a ${b} c¦;", "const s = `a ${b['k¦']}`;"],
    "typescript": ["const s = 'a ${b¦}';", "const s: string = `a ${b} c¦\n`;", "const s = `a \\${b¦}`;"],
    "tsx": ["const s = <a b={`x¦ ${y}`}/>;", 'const s = <a b="${y¦}"/>;'],
    "ruby": ["puts 'Total: #{a¦}'", 'puts "Total¦: #{a}"', "x = <<~'EOS'\n  a #{b¦}\nEOS", "x = %w[a b¦]", "x = `ls¦ #{d}`"],
    "bash": [
        "echo 'a $na¦ b'",
        'echo "a $na b¦',
        'echo "a $na b¦"',
        "echo 'a $(l¦s) b'",
        'echo "a¦ $(ls) b"',
        "cat <<'EOF'\na $(l¦s) b\nEOF",
        'echo "a $(echo "b¦")"',
    ],
    "rust": [
        'fn f() { println!("{{a¦}}"); }',
        'fn f() { println!("{a} b¦"); }',
        'fn f() { println!("{a} b¦");\n}\n\nfn g() {\n',
        'fn f() { g("{a¦}"); }',
        'fn f() { info!(target: "x¦", "{a}"); }',
        'fn f() { println!("{}", a); g("{a¦}"); }',
        'fn f() { let s = "see vec![1¦"; }',
        'fn f() { let s = "see vec![1¦',
        'fn f() { panic!("call assert!(x¦"); }',
        'fn f() { panic!("call assert!(x¦',
        '// as format!(\nfn f() { let s = "{a¦}"; }',
        "/*" + 100 * "as format!(\n" + '1" */\nconst S: &str = "{a¦}";',
        'fn f() { let s = "' + 100 * "as format!(\n" + '"; println!("a¦"); }',
        'fn f() { let s = "\ncall assert!(x¦"; }',
    ],
    "csharp": [
        'var s = "a {b¦}";',
        'var s = $"a {{b¦}}";',
        'var s = $"a {b:N¦2}";',
        'var s = """a {b¦} c""";',
        'var s = $"a¦ {b}";',
    ],
    "php": [
        "<?php\n$s = 'a $na¦ c';",
        "<?php\n$s = 'a $b->¦ c';",
        '<?php\n$s = "a $na c¦";',
        "<?php\n$s = 'a {$x->¦} c';",
        '<?php\n$s = "a¦ {$x} c";',
        "<?php\n$s = <<<'X'\n a {$x¦} c\nX;",
        "<?php\n$s = \"a {$x['k¦']}\";",
    ],
}
PLACES = [("code", name, text) for name, texts in CODE.items() for text in texts]
PLACES += [("string", name, text) for name, texts in STRINGS.items() for text in texts]


def scope(language: str, marked: str) -> str:
    offset, text = marked.index("¦"), marked.replace("¦", "")
    document = Document("file:///a", language, text)
    return decisions.scope_at(document, syntaxes.of(document), offset)


@pytest.mark.parametrize("after", ["", "\n", "\n\n# More, that's all\n"])
@pytest.mark.parametrize(("expected", "language", "text"), PLACES)
def test_only_the_expression_of_an_interpolated_string_is_code(expected: str, language: str, text: str, after: str) -> None:
    if after.strip() and language not in ("python", "ruby", "bash"):
        after = after.replace("#", "//")
    assert scope(language, text + after) == expected


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "def f(\n    a = 'x'\n" + "    b = 1\n" * 300 + "    name=f'{a} and ¦\n    other=1)\n"),
        ("typescript", "f({\n" + "  b: 1,\n" * 400 + "  c: `a ${b} c¦,\n  d: 1,\n});\n"),
        ("java", "class A {\n  void f() {\n" + "    int x = 1;\n" * 200 + '    String s = "abc¦\n  }\n}\n'),
    ],
)
def test_a_string_is_open_far_below_the_start_of_an_error(language: str, text: str) -> None:
    assert scope(language, text) == "string"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("java", 'def (((\nclass A {\n  String s = "abc";\n  int f() {\n    return this.¦\n  }\n}\n'),
        ("go", "package a\n\nfunc f( {\n\tx := `a\n  it's b`, func(m map[s¦\n}\n"),
        ("python", "def f(((\n    s = 'abc'\n    t = f'{s}'\n    return s.¦\n"),
    ],
)
def test_code_below_an_error_stays_code(language: str, text: str) -> None:
    assert scope(language, text) == "code"
