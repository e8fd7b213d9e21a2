"""An output that would take the place of the run's own manifest.json, with its attributes."""

from featuremill.workload.outputs import Format

FORMAT = Format("manifest", "nobody", 10, has_sidecar=True)


class Writer:
    """Never opened."""
