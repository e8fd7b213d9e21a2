"""What steps, workloads and outputs may use of the core beside their contracts.

One module a subject; docs/kit.md lists each name. Importing any of them loads no heavy package.
"""
