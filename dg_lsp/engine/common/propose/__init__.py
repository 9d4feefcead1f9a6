"""Ways to propose texts that both families use: copies, drafts from left to right, and what the file repeats."""
