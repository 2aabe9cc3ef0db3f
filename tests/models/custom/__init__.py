"""Checkpoints whose class is Python code beside their weights, as strangers publish them."""
