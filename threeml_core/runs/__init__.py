"""Records of runs, where they are found, and what does many of them."""
