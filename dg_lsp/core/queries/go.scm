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

; Names that a scope binds, each of them once
[(source_file) (import_spec_list) (field_declaration_list) (statement_list)] @scope
(source_file [
    (function_declaration name: (_) @binds)
    (type_declaration (type_spec name: (_) @binds))
    (const_declaration (const_spec name: (_) @binds))
    (var_declaration (var_spec name: (_) @binds))
    (var_declaration (var_spec_list (var_spec name: (_) @binds)))]
  (#not-match? @binds "^(init|_)$"))
(source_file (method_declaration name: (_) @binds.whole))
(import_spec !name path: (_) @binds)
(import_spec name: (package_identifier) @binds)
((field_declaration name: (_) @binds) (#not-eq? @binds "_"))
(statement_list (short_var_declaration left: (_) @binds))
