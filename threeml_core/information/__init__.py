"""Mutual information between states of [MASK]s and the tokens that stood there (section 4.2)."""
