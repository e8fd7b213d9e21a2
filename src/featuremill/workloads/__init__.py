"""Built-in workloads; each module or folder obeys `featuremill.workload.Workload`."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from featuremill.workloads.esm2 import embed as embed
