(comment) @comment
(interpreted_string_literal) @string
(raw_string_literal) @string

; Bodies
(function_declaration name: (_) @name body: (block . "{" @opener (statement_list)? @body "}" @closer .) @body) @function
(method_declaration name: (_) @name body: (block . "{" @opener (statement_list)? @body "}" @closer .) @body) @function
(func_literal body: (block . "{" @opener (statement_list)? @body "}" @closer .) @body) @closure
(type_declaration (type_spec name: (_) @name)) @type

; Blocks
(block "{" @opens)
(expression_switch_statement "{" @opens)
(type_switch_statement "{" @opens)
(select_statement "{" @opens)

; Placeholders
(expression_statement (call_expression function: (identifier) @_name arguments: (argument_list) @_says)
  (#eq? @_name "panic")
  (#match? @_says "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder
((return_statement) @placeholder.with
  (#match? @placeholder.with "^return( (nil|false|0|\"\")(, *(nil|false|0|\"\"))*)?$"))
((return_statement) @placeholder
  (#match? @placeholder "(?i)(errors\\.New|Errorf)\\(\"\\W*(todo|\\w*:? ?(not|un)[ _-]?(yet[ _-]?)?implemented)"))
