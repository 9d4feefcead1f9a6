"""From installed sources to the embedded checkpoint: corpus, tokenizer, objective, loop, export."""
