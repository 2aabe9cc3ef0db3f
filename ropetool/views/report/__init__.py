"""A report as one HTML page, as PNG files and as tables for a terminal; all are made of the same JSON object."""
