(raw_string_literal) @string
(template_parameter_list) @decoration

; Bodies
(class_specifier name: (_) @name (base_class_clause)? @bases body: (field_declaration_list . "{" @opener "}" @closer .) @body) @class
(lambda_expression body: (compound_statement . "{" @opener "}" @closer .) @body) @closure
(alias_declaration) @type

; Blocks
(field_declaration_list "{" @opens)
(declaration_list "{" @opens)

; Placeholders
((throw_statement) @placeholder
  (#match? @placeholder "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))"))

; Meant to be empty: a constructor without parameters or with initializers, an exception, a destructor
(function_definition !type declarator: (function_declarator parameters: (parameter_list . "(" . ")" .))) @empty
(function_definition (field_initializer_list)) @empty
(class_specifier (base_class_clause) @_base (#match? @_base "(error|Error|exception|Exception)\\b")) @empty
(function_definition declarator: (function_declarator declarator: [(destructor_name) (qualified_identifier name: (destructor_name))])) @empty
