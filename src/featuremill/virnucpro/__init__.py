"""VirNucPro's files and VirNucPro's command, for who comes from there."""
