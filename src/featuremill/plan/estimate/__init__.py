"""How long a run will take on so many devices, and what it needs, before it is started."""
