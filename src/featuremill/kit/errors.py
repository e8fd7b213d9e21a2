"""The errors that a plug-in raises, and what kind of fault an exception is."""

from featuremill.base.errors import DeviceError, IntegrityError, UserError, WorkloadError
from featuremill.base.faults import fault_of_installation, is_device_error, is_out_of_memory
from featuremill.base.faults import one_line as error_text

__all__ = [
    "DeviceError",
    "IntegrityError",
    "UserError",
    "WorkloadError",
    "error_text",
    "fault_of_installation",
    "is_device_error",
    "is_out_of_memory",
]
