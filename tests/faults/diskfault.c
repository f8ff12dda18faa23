/* Faults of a disk and of the wall clock inside one process: preload it, then write orders into a file.
 *
 *   gcc -O2 -shared -fPIC -o diskfault.so diskfault.c -ldl
 *   DISKFAULT_PATH=/data DISKFAULT_ORDERS=/tmp/orders LD_PRELOAD=diskfault.so python ...
 *
 * Only files whose path begins with DISKFAULT_PATH are touched. Orders are words "name=number", read again whenever the
 * file changes (looked at every 10 ms at most):
 *   write_errno=5   writes fail            sync_errno=5   fsync and fdatasync fail
 *   torn_kill=0.01  with this chance a write stores only its beginning, and the process dies on the spot
 *   short=0.2       with this chance a write stores only its beginning, and says so
 *   delay_us=20000  every write and sync takes this much longer
 *   sync_us=8000000 every sync hangs for this long, or until the order is taken back
 *   write_us, read_us, name_us  the same of writes, of reads at a position, and of opens, renames and removals
 *   rename_errno=5  renames and removals fail
 *   create_errno=24 files cannot be made (of those that are there, all goes on)
 *   logs_only=1     of the files, only those of the campaign's partitions: the journal of the quorum is spared
 *   clock_ms=-9000  the wall clock is off by this much; the monotonic one is not
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum {
    WRITE_ERRNO, SYNC_ERRNO, TORN_KILL, SHORT, DELAY_US, CLOCK_MS, LOGS_ONLY, SYNC_US, RENAME_ERRNO, CREATE_ERRNO,
    WRITE_US, READ_US, NAME_US, ORDERS
};
static const char *names[ORDERS] = {
    "write_errno", "sync_errno", "torn_kill", "short", "delay_us", "clock_ms", "logs_only", "sync_us", "rename_errno",
    "create_errno", "write_us", "read_us", "name_us",
};
static volatile double orders[ORDERS];
static const char *orders_path, *data_path;
static long long looked_ns, changed_ns = -1;
static unsigned long long dice = 0x9E3779B97F4A7C15ULL;

static int (*real_clock)(clockid_t, struct timespec *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off_t);
static int (*real_fsync)(int), (*real_fdatasync)(int);

__attribute__((constructor)) static void begin(void) {
    real_clock = REAL(clock_gettime);
    real_write = REAL(write);
    real_pwrite = REAL(pwrite);
    real_writev = REAL(writev);
    real_pwritev = REAL(pwritev);
    real_fsync = REAL(fsync);
    real_fdatasync = REAL(fdatasync);
    orders_path = getenv("DISKFAULT_ORDERS");
    data_path = getenv("DISKFAULT_PATH");
    dice ^= (unsigned long long)getpid() * 2654435761ULL;
}

static double chance(void) {
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return (double)(dice >> 11) / 9007199254740992.0;
}

static void read_orders(void) {
    struct timespec now;
    struct stat state;
    char text[512], *rest = 0;
    if (!orders_path || !real_clock) return;
    real_clock(CLOCK_MONOTONIC, &now);
    long long now_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    if (now_ns - looked_ns < 10000000LL) return;
    looked_ns = now_ns;
    if (stat(orders_path, &state)) return;
    long long stamp_ns = state.st_mtim.tv_sec * 1000000000LL + state.st_mtim.tv_nsec;
    if (stamp_ns == changed_ns) return;
    changed_ns = stamp_ns;
    int handle = open(orders_path, O_RDONLY | O_CLOEXEC);
    if (handle < 0) return;
    ssize_t size = read(handle, text, sizeof text - 1);
    close(handle);
    text[size > 0 ? size : 0] = 0;
    double given[ORDERS] = {0};
    for (char *word = strtok_r(text, " \n", &rest); word; word = strtok_r(0, " \n", &rest)) {
        char *sign = strchr(word, '=');
        if (!sign) continue;
        *sign = 0;
        for (int i = 0; i < ORDERS; i++)
            if (!strcmp(word, names[i])) given[i] = atof(sign + 1);
    }
    for (int i = 0; i < ORDERS; i++) orders[i] = given[i];
}

static int is_our_path(const char *path) {
    if (!path || !data_path) return 0;
    if (orders[LOGS_ONLY] && !strstr(path, "/campaign-")) return 0;
    return !strncmp(path, data_path, strlen(data_path));
}

static int is_ours(int handle) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return is_our_path(path);
}

static void hang(int order) {
    for (double left_us = orders[order]; left_us > 0 && orders[order]; left_us -= 20000) {
        usleep(20000);
        read_orders();
    }
}

/* Returns the bytes to store, or -1 with errno; `dies`: the process ends after them. */
static ssize_t judged(int handle, size_t size, int *dies) {
    *dies = 0;
    read_orders();
    int is_asked = orders[WRITE_ERRNO] || orders[TORN_KILL] || orders[SHORT] || orders[DELAY_US] || orders[WRITE_US];
    if (!is_asked || !is_ours(handle)) return size;
    if (orders[WRITE_US]) hang(WRITE_US);
    if (orders[DELAY_US]) usleep((useconds_t)orders[DELAY_US]);
    if (orders[WRITE_ERRNO]) return errno = (int)orders[WRITE_ERRNO], -1;
    if (size > 1 && chance() < orders[TORN_KILL]) return *dies = 1, (ssize_t)(chance() * size);
    if (size > 1 && chance() < orders[SHORT]) return 1 + (ssize_t)(chance() * (size - 1));
    return size;
}

static ssize_t after(ssize_t done, int dies) {
    if (dies) kill(getpid(), SIGKILL);
    return done;
}

ssize_t write(int handle, const void *data, size_t size) {
    int dies;
    ssize_t part = judged(handle, size, &dies);
    return part < 0 ? -1 : after(real_write(handle, data, part), dies);
}

ssize_t pwrite(int handle, const void *data, size_t size, off_t offset) {
    int dies;
    ssize_t part = judged(handle, size, &dies);
    return part < 0 ? -1 : after(real_pwrite(handle, data, part, offset), dies);
}
ssize_t pwrite64(int handle, const void *data, size_t size, off_t offset) { return pwrite(handle, data, size, offset); }

static size_t total(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

/* A torn vector is cut within its first part: shorter than it could be, and torn all the same. */
ssize_t writev(int handle, const struct iovec *parts, int count) {
    int dies;
    size_t size = total(parts, count);
    ssize_t part = judged(handle, size, &dies);
    if (part < 0) return -1;
    if ((size_t)part == size && !dies) return real_writev(handle, parts, count);
    size_t first = (size_t)part < parts[0].iov_len ? (size_t)part : parts[0].iov_len;
    return after(real_write(handle, parts[0].iov_base, first), dies);
}

ssize_t pwritev(int handle, const struct iovec *parts, int count, off_t offset) {
    int dies;
    size_t size = total(parts, count);
    ssize_t part = judged(handle, size, &dies);
    if (part < 0) return -1;
    if ((size_t)part == size && !dies) return real_pwritev(handle, parts, count, offset);
    size_t first = (size_t)part < parts[0].iov_len ? (size_t)part : parts[0].iov_len;
    return after(real_pwrite(handle, parts[0].iov_base, first, offset), dies);
}

static void hangs_in_read(int handle) {
    read_orders();
    if (orders[READ_US] && is_ours(handle)) hang(READ_US);
}

ssize_t pread(int handle, void *data, size_t size, off_t offset) {
    hangs_in_read(handle);
    return REAL(pread)(handle, data, size, offset);
}
ssize_t pread64(int handle, void *data, size_t size, off_t offset) { return pread(handle, data, size, offset); }

static int sync_fails(int handle) {
    read_orders();
    if (!(orders[SYNC_ERRNO] || orders[DELAY_US] || orders[SYNC_US]) || !is_ours(handle)) return 0;
    if (orders[SYNC_US]) hang(SYNC_US);
    if (orders[DELAY_US]) usleep((useconds_t)orders[DELAY_US]);
    return orders[SYNC_ERRNO] ? (errno = (int)orders[SYNC_ERRNO], 1) : 0;
}

int fsync(int handle) { return sync_fails(handle) ? -1 : real_fsync(handle); }
int fdatasync(int handle) { return sync_fails(handle) ? -1 : real_fdatasync(handle); }

/* 1 with errno set where the order says so. The paths of the broker are absolute. */
static int name_fails(int order, const char *path) {
    read_orders();
    if (orders[NAME_US] && is_our_path(path)) hang(NAME_US);
    return orders[order] && is_our_path(path) ? (errno = (int)orders[order], 1) : 0;
}

int rename(const char *from, const char *to) {
    return name_fails(RENAME_ERRNO, from) ? -1 : REAL(rename)(from, to);
}
int unlink(const char *path) { return name_fails(RENAME_ERRNO, path) ? -1 : REAL(unlink)(path); }
int rmdir(const char *path) { return name_fails(RENAME_ERRNO, path) ? -1 : REAL(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { return name_fails(CREATE_ERRNO, path) ? -1 : REAL(mkdir)(path, mode); }

static mode_t mode_of(int flags, va_list rest) { return flags & O_CREAT ? (mode_t)va_arg(rest, int) : 0; }
static int makes(int flags, const char *path) { return flags & O_CREAT && access(path, F_OK); }

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    if (orders[NAME_US] && is_our_path(path)) hang(NAME_US);
    return makes(flags, path) && name_fails(CREATE_ERRNO, path) ? -1 : REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    if (orders[NAME_US] && is_our_path(path)) hang(NAME_US);
    return makes(flags, path) && name_fails(CREATE_ERRNO, path) ? -1 : REAL(open64)(path, flags, mode);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!real_clock) real_clock = REAL(clock_gettime);
    int result = real_clock(clock, time);
    if (result || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
    read_orders();
    if (!orders[CLOCK_MS]) return result;
    long long ns = time->tv_sec * 1000000000LL + time->tv_nsec + (long long)(orders[CLOCK_MS] * 1e6);
    time->tv_sec = ns / 1000000000LL;
    time->tv_nsec = ns % 1000000000LL;
    return result;
}

int gettimeofday(struct timeval *restrict value, void *restrict zone) {
    struct timespec time;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &time);
    value->tv_sec = time.tv_sec;
    value->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
