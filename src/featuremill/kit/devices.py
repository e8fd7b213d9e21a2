"""GPUs and CPUs: what is there, and the lease of one."""

from featuremill.base.devices import Device, DeviceChoice, devices_for, with_processors
from featuremill.lease import GpuOptions, Request, lease
from featuremill.lease.acquire import Choice
from featuremill.lease.request import HELP_OF_DEVICES

__all__ = [
    "HELP_OF_DEVICES",
    "Choice",
    "Device",
    "DeviceChoice",
    "GpuOptions",
    "Request",
    "devices_for",
    "lease",
    "with_processors",
]
