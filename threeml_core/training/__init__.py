"""Pre-training: the loop and all it needs."""
