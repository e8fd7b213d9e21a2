/* Reads the state file: lines "key=value"; '#' starts a comment; "[gpu]" begins the next GPU and
 * "[mig]" a slice of the GPU above it.
 *
 *   before the first [gpu]   driver= nvml= cuda=12040 init_error=CODE delay_ms=
 *   [gpu]  uuid= name= pci=00000000:3B:00.0 capability=8.0 minor= mode= (compute mode) mig=1
 *          total= used= reserved= (bytes, or with K, M, G) process=PID:BYTES (repeatable)
 *          graphics=PID:BYTES (repeatable: a process that draws; the same PID may compute as well)
 *          busy= (per cent) temperature= power_mw= power_limit_mw= ecc_errors= display=1
 *          sm_mhz= memory_mhz= throttle= (bits of reasons) meter=1 (it counts energy, at power_mw)
 *          lost=1 (every call on it says GPU_IS_LOST; it is still counted)
 *          error=CODE (every call on it)   error.nvmlDeviceGetMemoryInfo=CODE (that call)
 *          delay_ms= (a driver that answers slowly)   hang=nvmlDeviceGetPowerUsage (never returns)
 *   [mig]  uuid=MIG-... gpu_instance= compute_instance= total= used= process=
 */
#define _GNU_SOURCE
#include "node.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static u64 bytes(const char *text) {
    char *unit;
    u64 value = strtoull(text, &unit, 10);
    switch (toupper((unsigned char)*unit)) {
    case 'K': return value << 10;
    case 'M': return value << 20;
    case 'G': return value << 30;
    }
    return value;
}

static void copy(char *to, size_t size, const char *text) { snprintf(to, size, "%s", text); }

static void set_of_node(node *node, const char *key, const char *value) {
    if (!strcmp(key, "driver")) copy(node->driver, sizeof node->driver, value);
    else if (!strcmp(key, "nvml")) copy(node->nvml, sizeof node->nvml, value);
    else if (!strcmp(key, "cuda")) node->cuda = atoi(value);
    else if (!strcmp(key, "init_error")) node->init_error = atoi(value);
    else if (!strcmp(key, "delay_ms")) node->delay_ms = atoi(value);
}

#define FIELD(name) {#name, offsetof(device, name)}
static const struct { const char *key; size_t offset; } NUMBERS[] = {
    FIELD(minor), FIELD(mode), FIELD(mig), FIELD(lost), FIELD(error), FIELD(delay_ms),
    FIELD(gpu_instance), FIELD(compute_instance), FIELD(display), FIELD(busy), FIELD(temperature),
    FIELD(power_mw), FIELD(power_limit_mw), FIELD(sm_mhz), FIELD(memory_mhz), FIELD(throttle),
    FIELD(meter),
}, SIZES[] = {FIELD(total), FIELD(used), FIELD(reserved), FIELD(ecc_errors)};
#define COUNT(table) (sizeof table / sizeof *table)

static void set_of_device(device *d, const char *key, const char *value) {
    for (size_t i = 0; i < COUNT(NUMBERS); i++)
        if (!strcmp(key, NUMBERS[i].key)) *(int *)((char *)d + NUMBERS[i].offset) = atoi(value);
    for (size_t i = 0; i < COUNT(SIZES); i++)
        if (!strcmp(key, SIZES[i].key)) *(u64 *)((char *)d + SIZES[i].offset) = bytes(value);
    if (!strcmp(key, "uuid")) copy(d->uuid, sizeof d->uuid, value);
    if (!strcmp(key, "name")) copy(d->name, sizeof d->name, value);
    if (!strcmp(key, "pci")) copy(d->pci, sizeof d->pci, value);
    if (!strcmp(key, "hang")) copy(d->hang, sizeof d->hang, value);
    if (!strcmp(key, "capability")) copy(d->capability, sizeof d->capability, value);
    if (!strcmp(key, "process") && d->num_processes < MAX_PROCESSES) {
        const char *colon = strchr(value, ':');
        d->processes[d->num_processes].pid = (unsigned)atoi(value);
        d->processes[d->num_processes++].bytes = colon ? bytes(colon + 1) : 0;
    }
    if (!strcmp(key, "graphics") && d->num_graphics < MAX_PROCESSES) {
        const char *colon = strchr(value, ':');
        d->graphics[d->num_graphics].pid = (unsigned)atoi(value);
        d->graphics[d->num_graphics++].bytes = colon ? bytes(colon + 1) : 0;
    }
    if (!strncmp(key, "error.", 6) && d->num_errors < MAX_ERRORS) {
        copy(d->errors[d->num_errors].function, sizeof d->errors[0].function, key + 6);
        d->errors[d->num_errors++].code = atoi(value);
    }
}

static void defaults_of_gpu(device *d, int minor) {
    d->minor = minor;
    d->temperature = 30;
    d->power_mw = 50000;
    d->power_limit_mw = 400000;
    d->sm_mhz = 1410;
    d->memory_mhz = 1593;
    d->total = 80ull << 30;
    copy(d->name, sizeof d->name, "Simulated GPU");
    snprintf(d->pci, sizeof d->pci, "00000000:%02X:00.0", 0x10 + minor);
    snprintf(d->uuid, sizeof d->uuid, "GPU-00000000-0000-0000-0000-%012d", minor);
}

void read_node(node *node) {
    memset(node, 0, sizeof *node);
    copy(node->driver, sizeof node->driver, "580.65.06");
    copy(node->nvml, sizeof node->nvml, "13.580.65.06");
    node->cuda = 13000;
    const char *path = getenv("SIMULATED_NVML_STATE");
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file) {
        node->init_error = DRIVER_NOT_LOADED;
        return;
    }
    char line[512];
    device *current = NULL;
    int gpu = NOBODY, num_gpus = 0;
    while (fgets(line, sizeof line, file)) {
        char *key = line + strspn(line, " \t"), *comment = strchr(key, '#');
        if (comment) *comment = 0;
        for (size_t n = strlen(key); n && isspace((unsigned char)key[n - 1]);) key[--n] = 0;
        int is_slice = !strcmp(key, "[mig]");
        if (is_slice || !strcmp(key, "[gpu]")) {
            if (node->num_devices == MAX_DEVICES || (is_slice && gpu == NOBODY)) break;
            current = &node->devices[node->num_devices];
            copy(current->capability, sizeof current->capability, "8.0");
            if (!is_slice) defaults_of_gpu(current, num_gpus++);
            current->parent = is_slice ? gpu : NOBODY;
            if (!is_slice) gpu = node->num_devices;
            node->num_devices++;
            continue;
        }
        char *value = strchr(key, '=');
        if (!value) continue;
        *value++ = 0;
        if (current) set_of_device(current, key, value);
        else set_of_node(node, key, value);
    }
    fclose(file);
}

static int lives(int pid) {
    if (pid <= 0 || (kill(pid, 0) && errno == ESRCH)) return 0;
    char path[64], state = 'R';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 1;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'R';
    fclose(file);
    return state != 'Z' && state != 'X';
}

/* A pretend CUDA process puts a file <uuid>/<pid>, its content the bytes it holds, into the folder
 * SIMULATED_NVML_PROCESSES; it counts while that process lives, so kill -9 frees the memory. */
void add_living_processes(device *d) {
    const char *root = getenv("SIMULATED_NVML_PROCESSES");
    char path[1024], content[64];
    snprintf(path, sizeof path, "%s/%s", root ? root : "", d->uuid);
    DIR *folder = root ? opendir(path) : NULL;
    for (struct dirent *e; folder && (e = readdir(folder)) && d->num_processes < MAX_PROCESSES;) {
        if (!lives(atoi(e->d_name))) continue;
        snprintf(path, sizeof path, "%s/%s/%s", root, d->uuid, e->d_name);
        FILE *file = fopen(path, "re");
        if (!file || !fgets(content, sizeof content, file)) content[0] = 0;
        if (file) fclose(file);
        d->processes[d->num_processes].pid = (unsigned)atoi(e->d_name);
        d->processes[d->num_processes++].bytes = bytes(content);
    }
    if (folder) closedir(folder);
    for (int i = 0; i < d->num_processes; i++) d->used += d->processes[i].bytes;
    for (int i = 0; i < d->num_graphics; i++) {
        int computes = 0; /* then its memory is in both lists, and there once */
        for (int j = 0; j < d->num_processes; j++) computes |= d->processes[j].pid == d->graphics[i].pid;
        if (!computes) d->used += d->graphics[i].bytes;
    }
    u64 room = d->total > d->reserved ? d->total - d->reserved : 0;
    if (d->used > room) d->used = room;
}
