"""The page that says what a run did."""
