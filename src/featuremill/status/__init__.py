"""How far a run is, how fast, what failed and the time left: once, or continuously."""
