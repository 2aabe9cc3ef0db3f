"""The only importer of torch and transformers."""
