"""Small worlds: a generated language, and checkpoints that learn it in minutes on one core."""
