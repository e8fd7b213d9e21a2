"""Commands beside those of a run, each an entry point of the group `featuremill.commands`."""
