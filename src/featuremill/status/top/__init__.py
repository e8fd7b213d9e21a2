"""top: a run while it goes on; status, beside it, says how a run stands."""
