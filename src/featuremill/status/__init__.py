"""How far a run is, how fast, what failed and how long yet: at one time, or while it goes on."""
