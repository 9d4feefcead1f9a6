(comment) @comment
(string) @string
(encapsed_string) @string
(heredoc) @string
(nowdoc) @string
(shell_command_expression) @string
(attribute_list) @decoration

; Bodies
(function_definition name: (_) @name body: (compound_statement . "{" @opener "}" @closer .) @body) @function
(method_declaration name: (_) @name body: (compound_statement . "{" @opener "}" @closer .) @body) @function
(class_declaration name: (_) @name (base_clause)? @bases body: (declaration_list . "{" @opener "}" @closer .) @body) @class
(trait_declaration name: (_) @name body: (declaration_list . "{" @opener "}" @closer .) @body) @class
(anonymous_function body: (compound_statement . "{" @opener "}" @closer .) @body) @closure
(interface_declaration name: (_) @name) @type
(enum_declaration name: (_) @name) @type

; Blocks
(compound_statement "{" @opens)
(declaration_list "{" @opens)
(switch_block "{" @opens)

; Placeholders
(expression_statement (throw_expression (object_creation_expression) @_error)
  (#match? @_error "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder
(arrow_function body: (throw_expression) @placeholder.inline
  (#match? @placeholder.inline "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented)"))
((return_statement) @placeholder.with (#match? @placeholder.with "(?i)^return( (null|false|0|\\[\\]))?;$"))

; Meant to be empty
(method_declaration parameters: (formal_parameters (property_promotion_parameter))) @empty
(method_declaration (visibility_modifier) @_access name: (name) @_name
  (#any-of? @_name "__construct" "__clone")
  (#any-of? @_access "private" "protected")) @empty
(method_declaration name: (name) @_name parameters: (formal_parameters . "(" . ")" .)
  (#any-of? @_name "__construct" "__destruct")) @empty
(class_declaration (base_clause) @_base (#match? @_base "(Error|Exception)\\b")) @empty
