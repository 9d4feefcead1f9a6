(comment) @comment
(string) @string
(decorator) @decoration

; Bodies
(function_definition name: (_) @name ":" @opener body: (block) @body) @function
(class_definition name: (_) @name superclasses: (_)? @bases ":" @opener body: (block) @body) @class

; The first string of a body or of the file
(function_definition body: (block . (expression_statement . (string) .) @docstring))
(class_definition body: (block . (expression_statement . (string) .) @docstring))
(module . (comment)* . (expression_statement . (string) .) @docstring)
(expression_statement . [(string) (concatenated_string)] .) @string.alone

; Blocks
(_ ":" @opens (block))

; Placeholders
(pass_statement) @placeholder.weak
(expression_statement . (ellipsis) .) @placeholder
(return_statement (ellipsis)) @placeholder
(expression_statement . (call function: (identifier) @_name arguments: (argument_list . (string) @_says .)) .
  (#eq? @_name "print")
  (#match? @_says "(?i)^\\W*(todo\\b|(not|un)[ _-]?(yet[ _-]?)?implemented)")) @placeholder
(raise_statement . [(identifier) (call)] @_error .
  (#match? @_error "^(NotImplementedError|NotImplemented)\\b")) @placeholder
(raise_statement . (call) @_error
  (#match? @_error "(?i)^\\w*(Error|Exception)\\(\\W*(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))")) @placeholder
(assert_statement (false) (string) @_says
  (#match? @_says "(?i)(todo|(not|un)[ _-]?(yet[ _-]?)?implemented)")) @placeholder
(return_statement . [(none) (false) (integer)] .) @placeholder.with
(return_statement "return" .) @placeholder.with
(lambda body: (ellipsis) @placeholder.inline)

; Meant to be empty
(decorated_definition
  (decorator) @_decorator
  definition: (function_definition) @abstract
  (#match? @_decorator "^@\\s*([\\w.]+\\.)?(overload|abstract(method|property|classmethod|staticmethod))\\b"))
(class_definition
  superclasses: (argument_list) @_bases
  (#match? @_bases "\\b(Protocol|ABC|ABCMeta|Interface)\\b")) @abstract.members
(if_statement condition: (_) @_condition (#match? @_condition "^([\\w]+\\.)?TYPE_CHECKING$")) @abstract.members
(class_definition
  superclasses: (argument_list) @_bases
  (#match? @_bases "(Error|Exception|Warning|KeyboardInterrupt|SystemExit|Protocol|\\bABC)\\b")) @empty
; Command groups, whose functions need no body
(decorated_definition
  (decorator) @_decorator
  definition: (function_definition) @empty
  (#match? @_decorator "^@\\s*[\\w.]*\\b(group|callback)\\("))
