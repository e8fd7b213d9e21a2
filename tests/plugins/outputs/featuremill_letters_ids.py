"""An output of another package: a file with an id a line, and attributes beside it."""

from featuremill.workload.outputs import Format

FORMAT = Format("ids.txt", "nobody", 10, has_sidecar=True)


class Writer:
    """Writes the ids."""

    def __init__(self, target):
        self.file = target.path.open("w")

    def write(self, block):
        self.file.writelines(f"{id}\n" for id in block["id"].to_pylist())

    def close(self):
        self.file.close()
