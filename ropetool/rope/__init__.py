"""The mathematics of rotary position embeddings: numpy only, no files, no torch."""
