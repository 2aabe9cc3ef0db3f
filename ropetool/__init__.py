"""ropetool: inspect, convert, extend, verify and evaluate the rotary position embeddings of a checkpoint."""

__version__ = "0.1.0"
