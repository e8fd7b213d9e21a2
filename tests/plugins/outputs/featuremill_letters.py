"""An output of another package: a folder with a file for each letter that ids begin with.

LETTERS_FAIL has the writer fail as the code of somebody else does.
"""

import os

from featuremill.workload.outputs import Format

FORMAT = Format("letters", "nobody", 10, is_folder=True)


class Writer:
    """Appends each id to the file of its first letter."""

    def __init__(self, target):
        self.folder = target.path

    def write(self, block):
        if "LETTERS_FAIL" in os.environ:
            raise KeyError("letter")
        for id in block["id"].to_pylist():
            path = self.folder / id[0] / "ids.txt"
            path.parent.mkdir(exist_ok=True)
            with path.open("a") as file:
                file.write(f"{id}\n")

    def close(self):
        pass
