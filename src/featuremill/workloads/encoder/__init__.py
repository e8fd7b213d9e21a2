"""Features of published encoders."""
