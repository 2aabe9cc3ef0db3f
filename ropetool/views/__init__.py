"""Results to terminal tables and JSON; computes nothing."""
