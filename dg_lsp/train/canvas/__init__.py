"""Train the canvas of a frozen causal model: a low-rank adapter that acts at canvas positions only."""
