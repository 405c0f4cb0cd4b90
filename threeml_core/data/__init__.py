"""From text to token sequences."""
