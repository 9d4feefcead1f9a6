(abstract_class_declaration name: (_) @name (class_heritage)? @bases body: (class_body . "{" @opener "}" @closer .) @body) @class
(interface_declaration name: (_) @name) @type
(type_alias_declaration name: (_) @name) @type
(enum_declaration name: (_) @name) @type

; Meant to be empty: a constructor that only declares fields, or only prevents calls
(method_definition
  name: (property_identifier) @_name
  parameters: (formal_parameters [(required_parameter (accessibility_modifier)) (optional_parameter (accessibility_modifier))])
  (#eq? @_name "constructor")) @empty
(method_definition
  (accessibility_modifier) @_access
  name: (property_identifier) @_name
  (#eq? @_name "constructor")
  (#match? @_access "^(private|protected)$")) @empty
