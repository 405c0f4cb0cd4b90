"""How fast the models train, measured in turns."""
