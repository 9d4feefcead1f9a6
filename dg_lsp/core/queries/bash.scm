(comment) @comment
(string) @string
(raw_string) @string
(heredoc_body) @string

; Bodies
(function_definition name: (_) @name body: (compound_statement . "{" @opener "}" @closer .) @body) @function
(function_definition name: (_) @name body: (subshell . "(" @opener ")" @closer .) @body) @function

; Blocks
(compound_statement "{" @opens)
(do_group . "do" @opens)
(if_statement "then" @opens)
(elif_clause "then" @opens)
(else_clause . "else" @opens)

; Placeholders
((command name: (command_name) @_name) @placeholder.weak (#any-of? @_name ":" "true"))
((command name: (command_name) @_name) @placeholder
  (#any-of? @_name "echo" "printf" "die" "fail" "error" ":")
  (#match? @placeholder "(?i)^\\S+ \\W*(-\\S+ )*\\W*([$\\w{}\\[\\]]+:? ?)?(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))"))
((redirected_statement body: (command name: (command_name) @_name)) @placeholder
  (#any-of? @_name "echo" "printf")
  (#match? @placeholder "(?i)^\\S+ \\W*(-\\S+ )*\\W*([$\\w{}\\[\\]]+:? ?)?(todo|(not|un)[ _-]?(yet[ _-]?)?implemented|implement (me|this))"))
((command name: (command_name) @_name) @placeholder.with (#any-of? @_name "return" "exit"))
