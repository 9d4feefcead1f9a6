(comment) @comment
(preproc_define (preproc_arg) @unparsed)
(string_literal) @string
(verbatim_string_literal) @string
(interpolated_string_expression) @string
(raw_string_literal) @string
(attribute_list) @decoration

; Bodies
(method_declaration name: (_) @name body: (block . "{" @opener "}" @closer .) @body) @function
(constructor_declaration name: (_) @name body: (block . "{" @opener "}" @closer .) @body) @function
(local_function_statement name: (_) @name body: (block . "{" @opener "}" @closer .) @body) @function
(operator_declaration body: (block . "{" @opener "}" @closer .) @body) @function
(accessor_declaration name: _ @name body: (block . "{" @opener "}" @closer .) @body) @closure
(class_declaration name: (_) @name (base_list)? @bases body: (declaration_list . "{" @opener "}" @closer .) @body) @class
(lambda_expression body: (block . "{" @opener "}" @closer .) @body) @closure
(anonymous_method_expression (block . "{" @opener "}" @closer .) @body) @closure
(interface_declaration name: (_) @name) @type
(enum_declaration name: (_) @name) @type
(struct_declaration name: (_) @name) @type
(record_declaration name: (_) @name) @type

; Blocks
(block "{" @opens)
(declaration_list "{" @opens)
(accessor_list "{" @opens)
(switch_body "{" @opens)

; Placeholders
(throw_statement (object_creation_expression type: (_) @_type)
  (#match? @_type "(^|\\.)NotImplementedException$")) @placeholder
(throw_statement (object_creation_expression arguments: (argument_list) @_says)
  (#match? @_says "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder
((throw_expression (object_creation_expression type: (_) @_type)) @placeholder.inline
  (#match? @_type "(^|\\.)NotImplementedException$"))
((return_statement) @placeholder.with (#match? @placeholder.with "^return( (null|false|0|default))?;$"))

; Meant to be empty
(interface_declaration) @abstract.members
(constructor_declaration (constructor_initializer)) @empty
(constructor_declaration (modifier) @_access (#eq? @_access "private")) @empty
(constructor_declaration parameters: (parameter_list . "(" . ")" .)) @empty
(class_declaration (base_list) @_base (#match? @_base "Exception\\b")) @empty
