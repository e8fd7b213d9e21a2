/* A pretend libnvidia-ml.so.1 for tests: enough of NVML for the real nvidia-ml-py (and torch) to see
 * whatever GPUs a text file describes. The file is read again at every call, so a test changes the
 * node by renaming a new file over the old one.
 *
 *   SIMULATED_NVML_STATE      the file (node.c says its form); unreadable: the driver is not loaded
 *   SIMULATED_NVML_PROCESSES  a folder of pretend CUDA processes, <uuid>/<pid>
 *
 * A function that is missing here is missing there: nvidia-ml-py raises FunctionNotFound.
 */
#define _GNU_SOURCE
#include "node.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int num_inits;
/* A handle points into this list: it names the same GPU when the file changes and indices shift. */
static char known[1024][96];
static int num_known;

static void sleep_ms(int ms) { if (ms > 0) usleep((useconds_t)ms * 1000); }

static int find(const node *node, const char *uuid) {
    for (int i = 0; i < node->num_devices; i++)
        if (!strcmp(node->devices[i].uuid, uuid)) return i;
    return NOBODY;
}

static int place_of_gpu(const node *node, unsigned index) {
    for (int i = 0; i < node->num_devices; i++)
        if (node->devices[i].parent == NOBODY && index-- == 0) return i;
    return NOBODY;
}

static unsigned index_of_gpu(const node *node, int place) {
    unsigned index = 0;
    for (int i = 0; i < place; i++) index += node->devices[i].parent == NOBODY;
    return index;
}

static int error_of(const device *d, const char *function) {
    if (d->lost) return GPU_IS_LOST;
    if (d->error) return d->error;
    for (int i = 0; i < d->num_errors; i++)
        if (!strcmp(d->errors[i].function, function)) return d->errors[i].code;
    return OK;
}

static int give_handle(const device *d, const char *function, void **handle) {
    int code = error_of(d, function);
    if (code) return code;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < num_known && strcmp(known[i], d->uuid)) i++;
    if (i == num_known && num_known < 1024) snprintf(known[num_known++], 96, "%s", d->uuid);
    pthread_mutex_unlock(&lock);
    *handle = known[i];
    return OK;
}

/* Initialised? Then read the node; with a handle, find its device `d` and that of the GPU, `gpu`. */
static int begin(const char *function, node *node, void *handle, device **d, device **gpu) {
    if (!num_inits) return UNINITIALIZED;
    read_node(node);
    sleep_ms(node->delay_ms);
    if (!d) return OK;
    if ((char *)handle < known[0] || (char *)handle >= known[1024]) return INVALID_ARGUMENT;
    int place = find(node, handle);
    if (place == NOBODY) return GPU_IS_LOST; /* it was there once */
    *d = *gpu = &node->devices[place];
    if ((*d)->parent != NOBODY) *gpu = &node->devices[(*d)->parent];
    sleep_ms((*gpu)->delay_ms);
    while (!strcmp((*gpu)->hang, function)) pause();
    return error_of(*gpu, function);
}

#define ON_NODE \
    node node; \
    int code = begin(__func__, &node, NULL, NULL, NULL); \
    if (code) return code;
#define ON_DEVICE \
    node node; \
    device *d = NULL, *gpu = NULL; \
    int code = begin(__func__, &node, handle, &d, &gpu); \
    if (code) return code; \
    int is_slice = d != gpu; \
    (void)is_slice;

static int text(char *to, unsigned size, const char *from) {
    if (strlen(from) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

API nvmlInitWithFlags(unsigned flags) {
    node node;
    (void)flags;
    read_node(&node);
    sleep_ms(node.delay_ms);
    if (node.init_error) return node.init_error;
    __sync_fetch_and_add(&num_inits, 1);
    return OK;
}
API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlShutdown(void) {
    if (!num_inits) return UNINITIALIZED;
    __sync_fetch_and_sub(&num_inits, 1);
    return OK;
}
__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

API nvmlSystemGetDriverVersion(char *to, unsigned size) { ON_NODE return text(to, size, node.driver); }
API nvmlSystemGetNVMLVersion(char *to, unsigned size) { ON_NODE return text(to, size, node.nvml); }
API nvmlSystemGetCudaDriverVersion(int *version) { ON_NODE *version = node.cuda; return OK; }
API nvmlSystemGetCudaDriverVersion_v2(int *version) { ON_NODE *version = node.cuda; return OK; }

API nvmlDeviceGetCount_v2(unsigned *count) {
    ON_NODE
    *count = index_of_gpu(&node, node.num_devices);
    return OK;
}
API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    ON_NODE
    int place = place_of_gpu(&node, index);
    return place == NOBODY ? INVALID_ARGUMENT : give_handle(&node.devices[place], __func__, handle);
}
API nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    ON_NODE
    int place = find(&node, uuid);
    if (place == NOBODY) return NOT_FOUND;
    device *d = &node.devices[place];
    device *gpu = d->parent == NOBODY ? d : &node.devices[d->parent];
    int broken = error_of(gpu, __func__);
    return broken ? broken : give_handle(d, __func__, handle);
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
    ON_NODE
    for (int i = 0; i < node.num_devices; i++)
        if (node.devices[i].parent == NOBODY && !strcasecmp(id, node.devices[i].pci))
            return give_handle(&node.devices[i], __func__, handle);
    return NOT_FOUND;
}

API nvmlDeviceGetName(void *handle, char *to, unsigned size) { ON_DEVICE return text(to, size, gpu->name); }
API nvmlDeviceGetUUID(void *handle, char *to, unsigned size) { ON_DEVICE return text(to, size, d->uuid); }
API nvmlDeviceGetIndex(void *handle, unsigned *index) {
    ON_DEVICE
    *index = index_of_gpu(&node, (int)(gpu - node.devices));
    return OK;
}
API nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { ON_DEVICE *minor = (unsigned)gpu->minor; return OK; }
API nvmlDeviceGetPciInfo_v3(void *handle, pci_info *info) {
    ON_DEVICE
    memset(info, 0, sizeof *info);
    sscanf(gpu->pci, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", gpu->pci);
    return OK;
}
API nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {
    ON_DEVICE
    add_living_processes(d);
    memory->total = d->total;
    memory->used = d->used + d->reserved;
    memory->free = d->total - memory->used;
    return OK;
}
API nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
    ON_DEVICE
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    add_living_processes(d);
    memory->total = d->total;
    memory->reserved = d->reserved;
    memory->used = d->used;
    memory->free = d->total - d->used - d->reserved;
    return OK;
}
API nvmlDeviceGetUtilizationRates(void *handle, utilisation *rates) {
    ON_DEVICE
    if (is_slice || d->mig) return NOT_SUPPORTED;
    rates->gpu = d->busy;
    rates->memory = d->busy / 2;
    return OK;
}
API nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *celsius) {
    ON_DEVICE
    (void)sensor;
    *celsius = gpu->temperature;
    return OK;
}
API nvmlDeviceGetPowerUsage(void *handle, unsigned *mw) { ON_DEVICE *mw = gpu->power_mw; return is_slice ? NOT_SUPPORTED : OK; }
API nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *mw) { ON_DEVICE *mw = gpu->power_limit_mw; return is_slice ? NOT_SUPPORTED : OK; }
API nvmlDeviceGetClockInfo(void *handle, unsigned clock, unsigned *mhz) {
    ON_DEVICE
    *mhz = clock == 2 ? gpu->memory_mhz : gpu->sm_mhz; /* 1: SM, 2: memory */
    return is_slice ? NOT_SUPPORTED : OK;
}
API nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *bits) { ON_DEVICE *bits = gpu->throttle; return is_slice ? NOT_SUPPORTED : OK; }
API nvmlDeviceGetTotalEnergyConsumption(void *handle, u64 *mj) {
    ON_DEVICE
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *mj = (u64)((double)gpu->power_mw * ((double)now.tv_sec + (double)now.tv_nsec / 1e9));
    return is_slice || !gpu->meter ? NOT_SUPPORTED : OK;
}
API nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    ON_DEVICE
    *major = *minor = 0;
    sscanf(gpu->capability, "%d.%d", major, minor);
    return OK;
}
API nvmlDeviceGetComputeMode(void *handle, unsigned *mode) { ON_DEVICE *mode = (unsigned)gpu->mode; return OK; }
API nvmlDeviceGetDisplayActive(void *handle, unsigned *active) { ON_DEVICE *active = (unsigned)gpu->display; return OK; }
API nvmlDeviceGetDisplayMode(void *handle, unsigned *mode) { ON_DEVICE *mode = (unsigned)gpu->display; return OK; }
API nvmlDeviceGetTotalEccErrors(void *handle, unsigned type, unsigned counter, u64 *count) {
    ON_DEVICE
    (void)counter;
    *count = type == 1 ? gpu->ecc_errors : 0; /* 1: uncorrected */
    return OK;
}

API nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) {
    ON_DEVICE
    *now = *pending = (unsigned)d->mig;
    if (is_slice) return INVALID_ARGUMENT;
    return atof(d->capability) < 8.0 ? NOT_SUPPORTED : OK;
}
API nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { ON_DEVICE *count = !is_slice && d->mig ? 7 : 0; return OK; }
API nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    ON_DEVICE
    for (int i = 0; i < node.num_devices; i++)
        if (d->mig && node.devices[i].parent == (int)(d - node.devices) && index-- == 0)
            return give_handle(&node.devices[i], __func__, slice);
    return NOT_FOUND;
}
API nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *answer) { ON_DEVICE *answer = (unsigned)is_slice; return OK; }
API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **parent) {
    ON_DEVICE
    return is_slice ? give_handle(gpu, __func__, parent) : INVALID_ARGUMENT;
}
API nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id) { ON_DEVICE *id = (unsigned)d->gpu_instance; return is_slice ? OK : INVALID_ARGUMENT; }
API nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id) { ON_DEVICE *id = (unsigned)d->compute_instance; return is_slice ? OK : INVALID_ARGUMENT; }

API nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_v3 *list) {
    ON_DEVICE
    add_living_processes(d);
    unsigned room = *count, num = (unsigned)d->num_processes;
    *count = num;
    if (num && (!list || room < num)) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < num; i++)
        list[i] = (process_v3){d->processes[i].pid, d->processes[i].bytes,
                               is_slice ? (unsigned)d->gpu_instance : ~0u,
                               is_slice ? (unsigned)d->compute_instance : ~0u};
    return OK;
}
API nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, process_v3 *list) {
    ON_DEVICE
    unsigned room = *count, num = (unsigned)d->num_graphics;
    *count = num;
    if (num && (!list || room < num)) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < num; i++)
        list[i] = (process_v3){d->graphics[i].pid, d->graphics[i].bytes, ~0u, ~0u};
    return is_slice ? NOT_SUPPORTED : OK;
}
