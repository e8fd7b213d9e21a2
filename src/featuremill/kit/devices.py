"""GPUs and CPUs: what is there, and the lease of one."""

from featuremill.base.devices import Device, DeviceChoice, devices_for, with_processors
from featuremill.lease import Request, lease
from featuremill.lease.acquire import Choice

__all__ = ["Choice", "Device", "DeviceChoice", "Request", "devices_for", "lease", "with_processors"]
