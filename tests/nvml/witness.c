/* The independent observer of the lease's tests: a command that leased one device claims one of the
 * device's places by a second mechanism of the kernel, an abstract socket that only one process can
 * bind, and writes down when.
 *
 *   witness RUN PLACES LOG MILLISECONDS
 *
 * It knows nothing of locks and slots. Where all places are taken, too many hold the device.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ll + now.tv_nsec / 1000;
}

static void say(const char *log, const char *what, const char *device) {
    char line[256];
    int length = snprintf(line, sizeof line, "%lld %d %s %s %d\n", now_us(), (int)getpid(), what,
                          device, (int)getuid());
    int file = open(log, O_WRONLY | O_APPEND);
    if (file < 0 || write(file, line, (size_t)length) != length) exit(9);
    close(file);
}

static int claim(const char *run, const char *device, int places) {
    int claimed = socket(AF_UNIX, SOCK_STREAM, 0);
    for (int place = 0; place < places; place++) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "%s/%s/%d", run, device,
                              place);
        socklen_t size = (socklen_t)(sizeof name.sun_family + 1 + (size_t)length);
        if (!bind(claimed, (struct sockaddr *)&name, size)) return 1;
    }
    close(claimed);
    return 0;
}

int main(int argc, char **argv) {
    const char *device = getenv("CUDA_VISIBLE_DEVICES");
    if (argc != 5 || !device || !*device || strchr(device, ',')) return 8;
    int claimed = claim(argv[1], device, atoi(argv[2]));
    /* A process that dies closes its locks and its socket microseconds apart. */
    for (int tries = 0; !claimed && tries < 20; tries++) {
        usleep(1000);
        claimed = claim(argv[1], device, atoi(argv[2]));
    }
    say(argv[3], claimed ? "got" : "TOO_MANY", device);
    usleep((useconds_t)atoi(argv[4]) * 1000);
    say(argv[3], "done", device);
    return !claimed;
}
