"""Mask more and mask later (3ML): efficient pre-training of masked language models."""
