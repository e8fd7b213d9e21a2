"""run.json: what the config asks of one run, as its commands read it."""

from __future__ import annotations

from typing import Any

from featuremill.store.json_file import JsonFile


class RunFile(JsonFile):
    """The file. The main Snakemake process writes it before the first job."""

    config: dict[str, Any]
    """The keys of a config without `features:`, each with its value; paths are seen from the folder
    where Snakemake runs."""
