"""Built-in workloads; each module or folder obeys `featuremill.workload.Workload`."""
