"""Comparing the 16-bit dtypes with fp32: the verb `featuremill audit`."""
