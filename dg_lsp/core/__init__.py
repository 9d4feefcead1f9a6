"""Pure parts: values, text, syntax, holes, context, polish. No I/O, no clock, no randomness, no logging."""
