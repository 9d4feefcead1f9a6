(line_comment) @comment
(block_comment) @comment
(string_literal) @string

; Bodies
(method_declaration name: (_) @name body: (block . "{" @opener "}" @closer .) @body) @function
(constructor_declaration name: (_) @name body: (constructor_body . "{" @opener "}" @closer .) @body) @function
(class_declaration name: (_) @name superclass: (_)? @bases body: (class_body . "{" @opener "}" @closer .) @body) @class
(lambda_expression body: (block . "{" @opener "}" @closer .) @body) @closure
(interface_declaration name: (_) @name) @type
(enum_declaration name: (_) @name) @type
(record_declaration name: (_) @name) @type

; Blocks
(block "{" @opens)
(constructor_body "{" @opens)
(class_body "{" @opens)
(interface_body "{" @opens)
(switch_block "{" @opens)

; Placeholders
(throw_statement (object_creation_expression type: (_) @_type arguments: (argument_list . "(" . ")" .))
  (#eq? @_type "UnsupportedOperationException")) @placeholder.weak
(throw_statement (object_creation_expression arguments: (argument_list) @_says)
  (#match? @_says "(?i)(todo|not (yet supported|supported yet)|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder
(throw_statement (object_creation_expression type: (_) @_type)
  (#match? @_type "NotImplemented")) @placeholder
((return_statement) @placeholder.with (#match? @placeholder.with "^return( (null|false|0))?;$"))

; Meant to be empty
(interface_declaration) @abstract.members
(constructor_declaration (modifiers "private")) @abstract
(constructor_declaration parameters: (formal_parameters . "(" . ")" .)) @empty
(class_declaration (superclass) @_base (#match? @_base "(Error|Exception)\\b")) @empty
