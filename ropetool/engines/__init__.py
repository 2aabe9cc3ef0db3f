"""How each engine reads a checkpoint."""
