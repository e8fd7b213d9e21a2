"""How far a run is, how fast, what failed and how long yet: once, or continuously."""
