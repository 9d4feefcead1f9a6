(line_comment) @comment
(block_comment) @comment
(string_literal) @string
(raw_string_literal) @string
(attribute_item) @decoration

; Bodies
(function_item name: (_) @name body: (block . "{" @opener "}" @closer .) @body) @function
(closure_expression body: (block . "{" @opener "}" @closer .) @body) @closure
(impl_item !trait type: (_) @name body: (declaration_list . "{" @opener "}" @closer .) @body) @class
(struct_item name: (_) @name) @type
(enum_item name: (_) @name) @type
(type_item name: (_) @name) @type

; Blocks
(block "{" @opens)
(declaration_list "{" @opens)
(match_block "{" @opens)

; Placeholders
(macro_invocation macro: (identifier) @_name (#any-of? @_name "todo" "unimplemented")) @placeholder @placeholder.inline
(expression_statement (macro_invocation macro: (identifier) @_name) (#any-of? @_name "todo" "unimplemented")) @placeholder
(block (macro_invocation macro: (identifier) @_name (token_tree) @_says) @placeholder
  (#eq? @_name "panic")
  (#match? @_says "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))"))
(expression_statement (macro_invocation macro: (identifier) @_name (token_tree) @_says)
  (#eq? @_name "panic")
  (#match? @_says "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder

; Meant to be empty: default methods of a trait, and markers such as `impl Trait for Type {}`
(trait_item) @abstract.members
