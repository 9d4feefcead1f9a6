(comment) @comment
(string) @string

; Bodies
(function_declaration name: (_) @name parameters: (_) @opener body: (block)? @body "end" @closer .) @function
(function_definition parameters: (_) @opener body: (block)? @body "end" @closer .) @closure
(assignment_statement
  (variable_list name: (_) @name)
  (expression_list value: (function_definition parameters: (_) @opener body: (block)? @body "end" @closer .) @body)) @function
(field name: (_) @name
  value: (function_definition parameters: (_) @opener body: (block)? @body "end" @closer .) @body) @function

; Blocks
(_ "then" @opens)
(_ "do" @opens)
(_ "else" @opens)
(_ "repeat" @opens)

; Placeholders
(function_call name: (identifier) @_name arguments: (arguments) @_says
  (#any-of? @_name "error" "assert")
  (#match? @_says "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder
((return_statement) @placeholder.with (#match? @placeholder.with "^return( (nil|false|0))?;?$"))
