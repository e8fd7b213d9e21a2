"""Built-in output formats for the values of any workload; a module for each."""
