(comment) @comment
(preproc_arg) @unparsed
(string_literal) @string

; Bodies
(function_definition declarator: (_) @name body: (compound_statement . "{" @opener "}" @closer .) @body) @function
(type_definition) @type
(translation_unit (struct_specifier body: (_)) @type)
(translation_unit (enum_specifier body: (_)) @type)

; Blocks
(compound_statement "{" @opens)

; Placeholders
(expression_statement (call_expression function: (identifier) @_name arguments: (argument_list) @_says)
  (#match? @_name "(?i)^(assert|static_assert|abort|panic|die|fatal|error|errx?|perror|puts|printf|fprintf|\\w*assert\\w*|\\w*(panic|fatal|bug))$")
  (#match? @_says "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder
(expression_statement (call_expression function: (identifier) @_name)
  (#match? @_name "(?i)^(todo|(not|un)_?(yet_?)?implemented)$")) @placeholder
(expression_statement (call_expression function: (_) @_name)
  (#match? @_name "^(std::)?(abort|exit|terminate)$")) @placeholder.with
((return_statement) @placeholder.with (#match? @placeholder.with "^return( (NULL|nullptr|false|-?[01]))?;$"))
