"""Which bodies are holes, and where they start and end, in every language of the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dg_lsp.core import holes, languages
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.syntax import Owner
from dg_lsp.core.values import Document, Hole
from tests import marked

BODIES = frozenset({"bodies"})


def check(text: str, language: str, *, empty: bool = False, uri: str = "file:///code") -> None:
    document, expected = marked.holes(text, language, uri)
    bodies = holes.in_document(document, marked.parse(document), BODIES | {"empty"} if empty else BODIES)
    expected_bodies = [Hole(span, "body") for span in expected]
    assert marked.draw(document, bodies) == marked.draw(document, expected_bodies)
    assert all(hole.kind == "body" for hole in bodies)


PYTHON = {
    "a documented pass": """
        def f():
            '''Return one.'''
            <hole>pass</hole>
    """,
    "a bare pass is empty on purpose": """
        def f():
            pass

        class A: pass
    """,
    "an ellipsis needs no description": """
        def f():
            <hole>...</hole>
    """,
    "on the line of the def": """
        def f(x: int) -> int:<hole> ...</hole>
        def g():<hole> raise NotImplementedError</hole>
    """,
    "a raise, called or not, with a message or not": """
        def f():
            <hole>raise NotImplementedError</hole>
        async def g():
            '''Docs.'''
            # and a comment
            <hole>raise NotImplementedError("g")</hole>
        def h():
            <hole>raise RuntimeError("not implemented yet")</hole>
        def i():
            <hole>assert False, "not implemented"</hole>
    """,
    "a raise after other code is a part of the function": """
        def f(x):
            if x:
                return 1
            raise NotImplementedError(x)
    """,
    "only a docstring": """
        def f():
            '''Return one.'''<hole></hole>
    """,
    "a bare TODO is replaced, one that says what to do stays": """
        def f():
            <hole># TODO</hole>

        def g():
            # TODO: sort by name<hole></hole>

        def h():
            # TODO: sort by name
            <hole>pass
            # with the youngest first</hole>

        def i():
            <hole># TODO: implement this
            pass</hole>

        def j():
            <hole>pass  # TODO sort</hole>

        def k():
            '''Docs.'''
            # TODO: sort by name<hole></hole>
    """,
    "a comment above describes, through decorators, but not from another function": """
        # Return one.
        @cache
        @other(
            1,
        )
        def f():
            <hole>pass</hole>

        def g():
            x = 1
            # the end of g
        def h():
            pass

        # noqa: E501
        def i():
            pass
    """,
    "a comment that says it is empty on purpose": """
        # The hook.
        def f():
            pass  # intentionally empty

        def g():
            '''Docs.'''
            # nothing to do
            pass
    """,
    "a comment for a tool is no description": """
        def f():
            pass  # noqa

        def g():
            <hole>...  # type: ignore</hole>
    """,
    "overloads, abstract methods, protocols": """
        @overload
        def f(x: int) -> int: ...
        @typing.overload
        def f(x: str) -> str: ...

        class A(Protocol):
            def f(self) -> int:
                '''Docs.'''
                ...
            def g(self) -> int: ...

        class B(ABC):
            '''Docs.'''
            @abstractmethod
            def f(self):
                '''Docs.'''
            def g(self):
                raise NotImplementedError

        class C(Generic[T], metaclass=abc.ABCMeta):
            def g(self):
                raise NotImplementedError("g")

        class D:
            @property
            @abc.abstractmethod
            def f(self):
                '''Docs.'''
                raise NotImplementedError

        if TYPE_CHECKING:
            def f(): ...
    """,
    "what a subclass is asked to write": """
        class A:
            def f(self):
                raise NotImplementedError("Subclasses must implement f")

            def g(self):
                raise NotImplementedError

            def i(self):
                '''Docs.'''
                <hole>raise NotImplementedError</hole>

            def h(self):
                <hole>raise NotImplementedError</hole>

        class B(A):
            def g(self):
                return 1

            def i(self):
                return 2
    """,
    "what is not to be had, and hooks": """
        class A:
            def f(self):
                raise NotImplementedError("This is not supported for A.")

            def g(self):
                '''Called when a test has ended.'''

            def h(self):
                '''For derived classes; does nothing.'''
                pass

            def i(self):
                "Nothing to do"
    """,
    "classes: exceptions and markers are complete": """
        class AError(ValueError):
            '''Docs.'''
            pass

        class B:
            '''Docs.'''

        class C: ...

        class D:
            '''Holds x and y.'''
            <hole>pass</hole>

        class E:
            # TODO: fields for x and y<hole></hole>
    """,
    "command groups only hold commands": """
        @click.group()
        def main():
            '''Docs.'''
            pass
    """,
    "a lambda": """
        key = lambda x: <hole>...</hole>
    """,
    "methods and nested functions": """
        class A:
            def f(self):
                '''Docs.'''
                <hole>pass</hole>

            def g(self):
                def inner():
                    <hole>...</hole>
                return inner
    """,
    "a value returned behind a placeholder goes with it, on its own it is code": """
        def f():
            <hole># TODO
            return None</hole>

        def g():
            # TODO: more
            return None
    """,
    "broken code": """
        def broken(:
            <hole>...</hole>

        x = (
        def f(self):
            <hole>raise NotImplementedError</hole>
    """,
}

JAVASCRIPT = {
    "empty braces, described": """
        /** Return one. */
        function f() {<hole></hole>}

        // Return two.
        export async function* g() {<hole>
        </hole>}

        /** Return three. */
        const h = () => {<hole> </hole>};

        /** Return four. */
        exports.i = function () {<hole></hole>};
    """,
    "empty braces, bare": """
        function f() {}
        class A { m() {} }
        const o = { a() {}, b: () => {} };
        promise.catch(() => {});
        // wait
        promise.catch(() => {});
    """,
    "thrown": """
        function f() {
          <hole>throw new Error("Not implemented");</hole>
        }
        class A {
          /** Docs. */
          get m() {<hole> throw new Error('m is not implemented') </hole>}
          n() {
            // Sort by name.
            <hole>throw new NotImplementedError();</hole>
          }
          o() {
            <hole>throw "TODO";</hole>
          }
        }
        const g = function () {
          <hole>throw new Error("TODO: g");
          return null;</hole>
        };
    """,
    "an error that is code": """
        function f(x) {
          throw new Error("bad " + x);
        }
        function g(x) {
          if (x) return 1;
          throw new Error("not implemented");
        }
    """,
    "comments": """
        function f() {
          <hole>// TODO</hole>
        }
        function g() {
          // TODO: sort by name<hole></hole>
        }
        function h() { /* sort by name */<hole> </hole>}
        function i() { // TODO: sort by name<hole></hole>
        }
        function j() {<hole> /* TODO */ </hole>}
        function k() {
          // do nothing
        }
    """,
    "derived classes and errors": """
        class A {
          m() { throw new Error("not implemented"); }
          n() {<hole> throw new Error("not implemented"); </hole>}
        }
        class B extends A {
          m() { return 1; }
        }
        /** Docs. */
        class BadError extends Error {}
        /** Docs. */
        class C {<hole></hole>}
    """,
    "one line of many": """
        // Docs.
        export default class A { m() {} }
        // Docs.
        f(), function g() {}
        // Does nothing.
        function h() {}
        class C {
          /** Docs. */
          constructor() {}
        }
    """,
    "closures": """
        list.map((x) => {
          <hole>throw new Error("unimplemented");</hole>
        });
        list.map(function (x) {
          // TODO: double it<hole></hole>
        });
    """,
    "broken code": """
        function f( {
          return }
        /** Docs. */
        function g() {<hole></hole>}
    """,
}

TYPESCRIPT = {
    **JAVASCRIPT,
    "signatures have no body": """
        function f(a: string): void;
        interface I { a(): void }
        declare function g(): void;
        abstract class A {
          /** Docs. */
          abstract m(): void;
        }
        /** Docs. */
        namespace N {}
    """,
    "constructors that only declare": """
        class A {
          /** Docs. */
          constructor(private x: number) {}
        }
        class B {
          /** Docs. */
          private constructor() {}
        }
        class C {
          /** Fill the cache. */
          constructor(x: number) {<hole></hole>}
        }
    """,
    "decorated": """
        abstract class A {
          /** Docs. */
          @dec()
          m(): number {
            <hole>throw new Error("Method not implemented.");</hole>
          }
        }
    """,
}

GO = {
    "panic": """
        package a

        func F() int {
        \t<hole>panic("not implemented")</hole>
        }

        func (a *A) G() { panic(a.err) }

        func (a *A) H() {<hole> panic("TODO: H") </hole>}
    """,
    "empty braces": """
        package a

        // F returns one.
        func F() {<hole></hole>}

        func G() {}

        var x = func() {}
    """,
    "comments": """
        package a

        func F() {
        \t// TODO: sort by name<hole></hole>
        }

        func G() error {
        \t<hole>// TODO
        \treturn nil</hole>
        }
    """,
    "an error returned": """
        package a

        func F() (int, error) {
        \t<hole>return 0, errors.New("not implemented")</hole>
        }

        func G() error {
        \treturn nil
        }

        var h = func() {
        \t<hole>panic("unimplemented")</hole>
        }
    """,
    "interfaces have no bodies": """
        package a

        // I does.
        type I interface { M() }
    """,
    "broken code": """
        package a
        func f( {
        \t<hole>panic("not implemented")</hole>
        }
    """,
}

RUST = {
    "todo and unimplemented": """
        /// Return one.
        #[inline]
        fn f() -> i32 {
            <hole>todo!()</hole>
        }
        impl A {
            fn g(&self) {<hole> unimplemented!("x"); </hole>}
        }
        fn h() {
            <hole>panic!("not implemented");</hole>
        }
        fn i() -> u8 {
            <hole>panic!("TODO")</hole>
        }
    """,
    "anywhere": """
        fn f(x: Option<u8>) -> u8 {
            let g = |y: u8| <hole>todo!()</hole>;
            match x {
                Some(y) => <hole>todo!("the sum")</hole>,
                None => {
                    let z = 1;
                    <hole>todo!();</hole>
                }
            }
        }
    """,
    "empty braces": """
        /// Docs.
        #[cfg(unix)]
        fn f() {<hole></hole>}
        fn g() {}
        fn h() {
            // TODO: sort by name<hole></hole>
        }
    """,
    "traits": """
        trait T {
            /// Docs.
            fn f();
            /// Docs.
            fn g(&self) {}
            fn h(&self) {
                <hole>todo!()</hole>
            }
        }
        impl Marker for A {}
        impl A {
            // TODO: new and len<hole></hole>
        }
    """,
    "nothing around it": """
        {
            <hole>todo!()</hole>
    """,
    "panics that are code": """
        fn f() { panic!("bad input") }
    """,
    "broken code": """
        fn f( {
            <hole>todo!()</hole>
        }
    """,
}

JAVA = {
    "thrown": """
        class A {
            /** Docs. */
            @Override
            public int f() {
                <hole>throw new UnsupportedOperationException();</hole>
            }
            int g() {<hole> throw new RuntimeException("Not implemented yet"); </hole>}
            int h() { throw new UnsupportedOperationException("immutable"); }
            int j() {<hole> throw new UnsupportedOperationException("Not supported yet."); </hole>}
            int i() { throw new IllegalStateException(); }
        }
    """,
    "empty braces": """
        class A {
            A() {}
            /** Do something. */
            void f() {<hole></hole>}
            void g() {}
            Runnable r = () -> {};
        }
    """,
    "generated stubs": """
        class A {
            public Object f() {
                <hole>// TODO Auto-generated method stub
                return null;</hole>
            }
            void g() {
                // TODO: sort by name<hole></hole>
            }
        }
    """,
    "what is empty on purpose": """
        /** Docs. */
        class AException extends RuntimeException {}
        class B {
            /** Docs. */
            private B() { throw new UnsupportedOperationException(); }
            abstract void f();
        }
        class C {
            /** Docs. */
            public C() {}
        }
        interface I {
            void a();
            /** Docs. */
            default void b() {}
            default void c() { throw new UnsupportedOperationException(); }
        }
    """,
    "broken code": """
        class A {
          int f( {
            <hole>throw new UnsupportedOperationException();</hole>
          }
        }
    """,
}

C = {
    "empty braces": """
        /* Return one. */
        static int *f(int a) {<hole></hole>}
        void g(void) {}
        void h(void) {
          // TODO: sort by name<hole></hole>
        }
    """,
    "asserted": """
        int f(void) {
          <hole>assert(0 && "not implemented");
          return -1;</hole>
        }
        void g(void) {
          <hole>fprintf(stderr, "g: not implemented\\n");
          abort();</hole>
        }
        void h(void) { abort(); }
        int i(void) { return 0; }
    """,
    "named so": """
        int f(void) {
          <hole>NOT_IMPLEMENTED();</hole>
        }
    """,
    "prototypes have no body": """
        /* Docs. */
        int f(int a);
        struct s { int x; };
    """,
    "broken code": """
        int f( {
          <hole>assert(0 && "not implemented");</hole>
        }
    """,
}

CPP = {
    **{name: text for name, text in C.items() if name != "broken code"},
    "thrown": """
        void f() {
          <hole>throw std::runtime_error("not implemented");</hole>
        }
        template <class T>
        T g() {<hole> throw std::logic_error("TODO"); </hole>}
        void h() { throw std::runtime_error("bad"); }
        auto l = [](int a) {
          <hole>throw std::logic_error("unimplemented");</hole>
        };
    """,
    "empty on purpose": """
        class A : public B {
         public:
          /** Docs. */
          A() : x(1) {}
          /** Docs. */
          A() {}
          /** Docs. */
          virtual ~A() {}
          /** Docs. */
          virtual void f() = 0;
          /** Docs. */
          void g() = delete;
          /** Docs. */
          void h() {<hole></hole>}
        };
        /// Docs.
        class E : public std::runtime_error {};
    """,
    "templates": """
        // Docs.
        template <class T>
        void f() {<hole></hole>}
        void A::g() {
          // TODO: sort by name<hole></hole>
        }
    """,
}

CSHARP = {
    "thrown": """
        namespace N
        {
            class A : B
            {
                /// <summary>Docs.</summary>
                [Pure]
                public int F()
                {
                    <hole>throw new NotImplementedException();</hole>
                }
                int G() => <hole>throw new System.NotImplementedException()</hole>;
                int P { get {<hole> throw new NotImplementedException(); </hole>} set; }
                int H() { throw new InvalidOperationException("bad"); }
            }
        }
    """,
    "empty braces": """
        class A
        {
            /// <summary>Docs.</summary>
            void F() {<hole></hole>}
            void G() {}
            void H()
            {
                // TODO: sort by name<hole></hole>
            }
            void I()
            {
                void local() {}
                var l = () => {};
                Run(delegate { });
            }
        }
    """,
    "empty on purpose": """
        interface I { void X(); }
        /// <summary>Docs.</summary>
        class AException : Exception {}
        abstract class A : B
        {
            // Docs.
            A() : base(1) {}
            // Docs.
            public A() {}
            // Docs.
            private A(int x) {}
            // Docs.
            public abstract void F();
        }
    """,
}

RUBY = {
    "raised": """
        def f(a)
          <hole>raise NotImplementedError</hole>
        end

        def g
          # Sort by name.
          <hole>raise NotImplementedError, "g"</hole>
        end

        def self.h
          <hole>raise "not implemented"</hole>
        end

        def i = raise(ArgumentError)

        def j
          raise ArgumentError
        end
    """,
    "nothing": """
        # Return one.
        def f(a)<hole>
        </hole>end

        def g
        end

        class A
          # Return two.
          def h<hole>; </hole>end
        end

        foo do |x|
        end
        l = ->(x) { }
    """,
    "comments": """
        def f
          <hole># TODO</hole>
        end

        class A < B
          def g
            # TODO: sort by name<hole></hole>
          end
        end

        module M
          # TODO: the helpers<hole></hole>
        end
    """,
    "empty on purpose": """
        class A
          def f
            raise NotImplementedError, "subclasses must implement f"
          end

          def g
            raise NotImplementedError
          end
        end

        class B < A
          def g
            1
          end
        end

        # Docs.
        class BadError < StandardError
        end
    """,
    "a block": """
        list.map do |x|
          # TODO: double it<hole></hole>
        end
    """,
}

PHP = {
    "thrown": """
        <?php
        function f() {
            <hole>throw new \\Exception('Not implemented');</hole>
        }
        class A {
            /** Docs. */
            #[Pure]
            public function g(): int {<hole> throw new RuntimeException("TODO"); </hole>}
            function h() { throw new \\LogicException('bad'); }
            function i() {
                <hole>throw new BadMethodCallException("Method not implemented");</hole>
            }
        }
        $k = fn() => <hole>throw new Exception('not implemented')</hole>;
    """,
    "empty braces": """
        <?php
        /** Docs. */
        function f() {<hole></hole>}
        function g() {}
        $c = function() {};
    """,
    "comments": """
        <?php
        function f() {
            # TODO: sort by name<hole></hole>
        }
        function g() {
            <hole>// TODO
            return null;</hole>
        }
    """,
    "empty on purpose": """
        <?php
        interface I { function a(); }
        abstract class A extends B {
            /** Docs. */
            abstract function h();
            /** Docs. */
            function __construct(private int $x) {}
            /** Docs. */
            function __destruct() {}
            /** Docs. */
            private function __clone() {}
        }
        /** Docs. */
        class E extends \\RuntimeException {}
    """,
}

BASH = {
    "colon": """
        # Print the date.
        f() {
          <hole>:</hole>
        }
        g() {
          :
        }
        # Print the time.
        h() {<hole> :; </hole>}
    """,
    "comments": """
        f() {
          <hole>: # TODO</hole>
        }
        g() { # TODO: print the date
          <hole>:</hole>
        }
        h() {
          # TODO: print the date<hole></hole>
        }
    """,
    "messages": """
        function f {
          <hole>echo "not implemented" >&2
          return 1</hole>
        }
        g() {
          <hole>echo "TODO"</hole>
        }
        h() {
          echo "hello"
        }
        i() {
          return 1
        }
    """,
    "empty on purpose": """
        # Docs.
        f() {
          : # no-op
        }
    """,
}

LUA = {
    "nothing": """
        -- Return one.
        local function f(a)<hole>
        </hole>end

        local function g() end

        local x = function() end
        local t = { a = function() end }
    """,
    "raised": """
        function M.g()
          <hole>error("not implemented")</hole>
        end
        function M:h()
          <hole>error "TODO"</hole>
        end
        function M.i()
          error("bad")
        end
    """,
    "comments": """
        function M:h()
          <hole>-- TODO</hole>
        end
        M.j = function(x)
          -- TODO: sort by name<hole></hole>
        end
        local t = {
          a = function()
            -- sort by name<hole></hole>
          end,
        }
    """,
    "empty on purpose": """
        -- Docs.
        function M.f()
          -- nothing to do
        end
    """,
}

CASES = {
    "python": PYTHON,
    "javascript": JAVASCRIPT,
    "typescript": TYPESCRIPT,
    "tsx": TYPESCRIPT,
    "go": GO,
    "rust": RUST,
    "java": JAVA,
    "c": C,
    "cpp": CPP,
    "csharp": CSHARP,
    "ruby": RUBY,
    "php": PHP,
    "bash": BASH,
    "lua": LUA,
}


@pytest.mark.parametrize(
    ("language", "text"),
    [
        pytest.param(language, text, id=f"{language}: {name}")
        for language, cases in CASES.items()
        for name, text in cases.items()
    ],
)
def test_bodies(language: str, text: str) -> None:
    check(text, language)


def test_every_language_has_cases() -> None:
    assert set(CASES) == {language.name for language in languages.TABLE}


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
@pytest.mark.parametrize("language", ["python", "typescript", "rust", "ruby", "bash", "lua"])
def test_line_ends_and_characters_before_a_hole_change_nothing(language: str, end: str) -> None:
    for text in CASES[language].values():
        document, expected = marked.holes(text, language)
        mark = "//" if language in ("typescript", "rust") else "--" if language == "lua" else "#"
        head = f"\ufeff{mark} ein 🦀 é\u2028\n\n"
        changed_text = (head + document.text).replace("\n", end)
        shifted_spans = []
        for span in expected:
            before, inside = document.text[: span.start], document.text[span.start : span.end]
            start = len((head + before).replace("\n", end))
            shifted_spans.append((start, start + len(inside.replace("\n", end))))
        other = Document(document.uri, language, changed_text)
        assert [
            (hole.span.start, hole.span.end) for hole in holes.in_document(other, marked.parse(other), BODIES)
        ] == shifted_spans


def test_the_empty_option_includes_bare_bodies() -> None:
    check("def f():\n    <hole>pass</hole>\n\nclass A:<hole> pass</hole>\n", "python", empty=True)
    check("function f() {<hole></hole>}\ng(() => {<hole></hole>});\n", "javascript", empty=True)
    check("def f():\n    <hole>pass  # nothing to do</hole>\n", "python", empty=True)


def test_the_empty_option_excludes_abstract_bodies() -> None:
    check("class A(Protocol):\n    def f(self): ...\n\nclass E(Exception): pass\n", "python", empty=True)


@pytest.mark.parametrize(
    ("language", "uri", "text"),
    [
        ("python", "file:///a.pyi", "def f() -> int:\n    '''Docs.'''\n    ...\n"),
        ("typescript", "file:///a.d.ts", "/** Docs. */\nexport function f() {}\n"),
    ],
)
def test_stub_files_have_no_body_holes(language: str, uri: str, text: str) -> None:
    check(text, language, uri=uri)
    check(text, language, uri=uri, empty=True)


def test_an_unknown_language_has_no_body_holes() -> None:
    check("function f() {}", "")


def shape(text: str, language: str, answer: str) -> str:
    document, _ = marked.holes(text, language)
    (hole,) = holes.in_document(document, marked.parse(document), BODIES)
    assert hole.block
    return marked.filled(document, hole, answer.replace("\n", "\n" + hole.indent))


def test_a_body_on_its_own_line_keeps_its_indentation() -> None:
    text = "class A:\n\tdef f(self):\n\t\t'''Docs.'''\n\t\tpass\n"
    assert shape(text, "python", "x = 1\nreturn x") == "class A:\n\tdef f(self):\n\t\t'''Docs.'''\n\t\tx = 1\n\t\treturn x\n"


def test_a_body_on_the_line_of_its_def_moves_below() -> None:
    assert shape("def f(): ...\nx = 1\n", "python", "return 1") == "def f():\n    return 1\nx = 1\n"


def test_a_body_of_only_a_docstring_continues_below_it() -> None:
    text = "def f():\n  '''Docs.'''\n\nx = 1\n"
    assert shape(text, "python", "return 1") == "def f():\n  '''Docs.'''\n  return 1\n\nx = 1\n"


def test_a_body_in_braces_on_one_line_moves_to_its_own_lines() -> None:
    assert shape("/** D */\nfunction f() { }\n", "javascript", "a();\nb();") == "/** D */\nfunction f() {\n  a();\n  b();\n}\n"
    text = "class A {\n    int f() { throw new UnsupportedOperationException(); }\n}\n"
    assert shape(text, "java", "return 1;") == "class A {\n    int f() {\n        return 1;\n    }\n}\n"


def test_braces_on_two_lines_keep_their_lines() -> None:
    assert shape("/** D */\nfunction f() {\n}\n", "javascript", "a();") == "/** D */\nfunction f() {\n  a();\n}\n"


def test_end_keywords_stay() -> None:
    assert shape("# D\ndef f(a); end\n", "ruby", "a") == "# D\ndef f(a)\n  a\nend\n"
    assert shape("-- D\nlocal function f() end\n", "lua", "return 1") == "-- D\nlocal function f()\n  return 1\nend\n"
    assert shape("# D\nk() { :; }\n", "bash", "date") == "# D\nk() {\n  date\n}\n"


def test_a_kept_comment_stays_above() -> None:
    text = "function f() { /* sort */ }\n"
    assert shape(text, "javascript", "a();") == "function f() { /* sort */\n  a();\n}\n"
    text = "function f() { // sort\n}\n"
    assert shape(text, "javascript", "a();") == "function f() { // sort\n  a();\n}\n"


def test_parameters_on_several_lines_do_not_indent_the_body() -> None:
    text = "def f(\n        a,\n):\n    # TODO: add\n"
    assert shape(text, "python", "return a") == "def f(\n        a,\n):\n    # TODO: add\n    return a\n"


def test_a_comment_behind_the_placeholder_becomes_the_instruction() -> None:
    document, _ = marked.holes("def f():\n    pass  # TODO: sort by name\n    # and by age\n")
    (hole,) = holes.in_document(document, marked.parse(document), BODIES)
    assert hole.instruction == "sort by name and by age"


def test_an_inline_placeholder_is_no_block() -> None:
    document, _ = marked.holes("fn f() { let c = |x| todo!(); }", "rust")
    (hole,) = holes.in_document(document, marked.parse(document), BODIES)
    assert not hole.block
    document, _ = marked.holes("fn f() {\n    a();\n    todo!();\n}", "rust")
    (hole,) = holes.in_document(document, marked.parse(document), BODIES)
    assert hole.block
    assert hole.indent == "    "


def test_body_holes_do_not_overlap_in_broken_nested_placeholders() -> None:
    check(
        """
        void h() {
          throw std::runtime_error( l = [](int a) {
            <hole>throw std::logic_error("unimplemented");</hole>
          };
        }
        """,
        "cpp",
    )


class Counted(tuple[Owner, ...]):
    """Owners that count how often they are all iterated."""

    n_looks = 0

    def __iter__(self) -> Iterator[Owner]:
        Counted.n_looks += 1
        return super().__iter__()


def test_a_long_file_is_not_scanned_for_each_hole() -> None:
    text = "".join(f'class A{n}:\n    def f(self):\n        """Return it."""\n        pass\n\n' for n in range(50))
    document = Document("file:///code", "python", text, 1)
    syntax = syntaxes.of(document)
    assert syntax is not None
    syntax.__dict__["facts"] = replace(syntax.facts, owners=Counted(syntax.facts.owners))
    Counted.n_looks = 0
    assert len(holes.in_document(document, syntax, BODIES)) == 50
    assert Counted.n_looks < 10
