"""Train the embedded checkpoint from source code: corpus, tokenizer, objective, training loop, export."""
