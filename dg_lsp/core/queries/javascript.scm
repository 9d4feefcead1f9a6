(comment) @comment
(string) @string
(template_string) @string
(expression_statement . [(string) (template_string)] .) @string.alone
(decorator) @decoration

; Bodies
(function_declaration name: (_) @name body: (statement_block . "{" @opener "}" @closer .) @body) @function
(generator_function_declaration name: (_) @name body: (statement_block . "{" @opener "}" @closer .) @body) @function
(method_definition name: (_) @name body: (statement_block . "{" @opener "}" @closer .) @body) @function
(class_declaration name: (_) @name (class_heritage)? @bases body: (class_body . "{" @opener "}" @closer .) @body) @class
(class body: (class_body . "{" @opener "}" @closer .) @body) @class
(function_expression body: (statement_block . "{" @opener "}" @closer .) @body) @closure
(generator_function body: (statement_block . "{" @opener "}" @closer .) @body) @closure
(arrow_function body: (statement_block . "{" @opener "}" @closer .) @body) @closure

; A closure that is bound to a name is a function
(lexical_declaration (variable_declarator name: (_) @name
  value: [(arrow_function body: (statement_block . "{" @opener "}" @closer .) @body)
          (function_expression body: (statement_block . "{" @opener "}" @closer .) @body)])) @function
(variable_declaration (variable_declarator name: (_) @name
  value: [(arrow_function body: (statement_block . "{" @opener "}" @closer .) @body)
          (function_expression body: (statement_block . "{" @opener "}" @closer .) @body)])) @function
(expression_statement (assignment_expression left: (_) @name
  right: [(arrow_function body: (statement_block . "{" @opener "}" @closer .) @body)
          (function_expression body: (statement_block . "{" @opener "}" @closer .) @body)])) @function

; Blocks
(statement_block "{" @opens)
(class_body "{" @opens)
(switch_body "{" @opens)

; Placeholders
(throw_statement (new_expression constructor: (_) arguments: (arguments) @_says)
  (#match? @_says "(?i)^\\(\\W*[\\w.#]*\\W*(method |function )?(\\w+ is )?(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder
(throw_statement (_) @_error
  (#match? @_error "^(new )?\\w*(NotImplemented|Unimplemented)\\w*")) @placeholder
(throw_statement [(string) (template_string)] @_says
  (#match? @_says "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented)")) @placeholder
(expression_statement (call_expression
    function: (member_expression object: (identifier) @_name)
    arguments: (arguments . [(string) (template_string)] @_says .))
  (#eq? @_name "console")
  (#match? @_says "(?i)^\\W*(todo\\b|(not|un)[ _-]?(yet[ _-]?)?implemented)")) @placeholder
(return_statement . "return" . ";"? .) @placeholder.with
(return_statement . "return" . [(null) (undefined) (false) (number)] . ";"? .) @placeholder.with

; Meant to be empty
(method_definition name: (property_identifier) @_name parameters: (formal_parameters . "(" . ")" .)
  (#eq? @_name "constructor")) @empty
(class_declaration (class_heritage) @_base (#match? @_base "(Error|Exception)\\b")) @empty

; A declaration inside code that can't be parsed
(ERROR (function_expression name: (_) @name body: (statement_block . "{" @opener "}" @closer .) @body) @function)
