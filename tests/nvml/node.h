/* The pretend node: what a state file says about its GPUs, and NVML's structures and codes. */
#ifndef SIMULATED_NODE_H
#define SIMULATED_NODE_H

typedef unsigned long long u64;

/* Laid out as NVIDIA's nvml.h lays them out; nvidia-ml-py's ctypes structures agree. */
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilisation;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_v3;
typedef struct { unsigned pid; u64 used; } process_v1;

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};

enum { MAX_DEVICES = 64, MAX_PROCESSES = 64, MAX_ERRORS = 16, NOBODY = -1 };

typedef struct {
    char uuid[96], name[96], pci[32], capability[16], hang[64];
    int parent; /* of a MIG slice: its GPU's place in the list; of a GPU: NOBODY */
    int minor, mode, mig, lost, error, delay_ms, gpu_instance, compute_instance, display;
    u64 total, used, reserved, ecc_errors;
    unsigned busy, temperature, power_mw, power_limit_mw, sm_mhz, memory_mhz, throttle, meter;
    int num_processes, num_graphics, num_errors;
    struct { unsigned pid; u64 bytes; } processes[MAX_PROCESSES], graphics[MAX_PROCESSES];
    struct { char function[64]; int code; } errors[MAX_ERRORS];
} device;

typedef struct {
    char driver[80], nvml[80];
    int cuda, init_error, delay_ms, num_devices;
    device devices[MAX_DEVICES];
} node;

/* Read the state file afresh. */
void read_node(node *node);
/* Add to a device's processes and memory those of its pretend processes that are alive. */
void add_living_processes(device *device);

#endif
