"""What the model types are."""
