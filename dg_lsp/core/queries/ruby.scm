(comment) @comment
(string) @string
(heredoc_body) @string
(subshell) @string
[(string_array) (symbol_array)] @string
(delimited_symbol) @string

; Bodies
(method name: (_) @name @opener parameters: (_)? @opener body: (body_statement)? @body "end" @closer .) @function
(singleton_method name: (_) @name @opener parameters: (_)? @opener body: (body_statement)? @body "end" @closer .) @function
(class name: (_) @name @opener superclass: (_)? @opener @bases body: (body_statement)? @body "end" @closer .) @class
(module name: (_) @name @opener body: (body_statement)? @body "end" @closer .) @class
(do_block . "do" @opener parameters: (_)? @opener body: (body_statement)? @body "end" @closer .) @closure
(block . "{" @opener parameters: (_)? @opener body: (block_body)? @body "}" @closer .) @closure

; Blocks
(then . "then" @opens)
(do . "do" @opens)
(else . "else" @opens)
(begin . "begin" @opens)
(if condition: (_) @opens)
(unless condition: (_) @opens)
(elsif condition: (_) @opens)
(while condition: (_) @opens)
(until condition: (_) @opens)

; Placeholders
(call method: (identifier) @_raise arguments: (argument_list . [(constant) (scope_resolution) (call)] @_error)
  (#any-of? @_raise "raise" "fail")
  (#match? @_error "^(::)?NotImplementedError\\b")) @placeholder
(call method: (identifier) @_raise arguments: (argument_list) @_says
  (#any-of? @_raise "raise" "fail")
  (#match? @_says "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder
((nil) @placeholder.with)

; Meant to be empty
(class superclass: (superclass) @_base (#match? @_base "(Error|Exception)$")) @empty
