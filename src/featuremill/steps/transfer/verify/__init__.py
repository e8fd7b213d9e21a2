"""The command `featuremill verify`: check results, such as those of other people."""
