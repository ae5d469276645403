/*
 * Faults below log and engine: a library for LD_PRELOAD that stands between a server and the kernel's files.
 *
 * Every write, sync, rename, removal and truncation of a file under the directory of FAULTS_DIR is an event; events are counted
 * from 1. FAULTS says what happens at which, as words with commas between:
 *
 *   kill=N       the process is killed at event N: a write is then done in part, in whole or not at all
 *   power=1      and what was not synced is lost in part: every file is cut somewhere between its synced and its whole length
 *   full=A-B     from event A to before B, and for a second and a half at most, nothing can be written and no file created
 *                (ENOSPC); a write is cut short first
 *   badsync=N    the first sync from event N on fails with EIO, and the next ones pretend that all is well, as Linux does
 *   seed=N       for what is left to chance
 *
 * The count of events goes to the file FAULTS_COUNT when the process is killed here.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILES 4096

static const char *dir;
static size_t dir_len;
static long kill_at, full_from, full_to, bad_sync, power, events;
static unsigned long long state = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Per file that was opened for writing: how much of it is on disk for sure. */
static struct { ino_t ino; off_t synced; } files[FILES];
static int file_count;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_fsync)(int), (*real_fdatasync)(int);
static int (*real_rename)(const char *, const char *), (*real_unlink)(const char *);
static int (*real_ftruncate)(int, off_t), (*real_fallocate)(int, int, off_t, off_t);
static int (*real_open)(const char *, int, ...), (*real_openat)(int, const char *, int, ...);

static long number(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *at = text; at; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (!strncmp(at, name, n) && at[n] == '=') return atol(at + n + 1);
    }
    return 0;
}

__attribute__((constructor)) static void start(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate");
    real_fallocate = dlsym(RTLD_NEXT, "fallocate");
    real_open = dlsym(RTLD_NEXT, "open");
    real_openat = dlsym(RTLD_NEXT, "openat");
    const char *plan = getenv("FAULTS");
    dir = getenv("FAULTS_DIR");
    if (!plan || !dir) { dir = NULL; return; }
    dir_len = strlen(dir);
    kill_at = number(plan, "kill");
    power = number(plan, "power");
    bad_sync = number(plan, "badsync");
    full_from = number(plan, "full");
    const char *range = strstr(plan, "full=");
    const char *dash = range ? strchr(range, '-') : NULL;
    full_to = dash ? atol(dash + 1) : 0;
    state = (unsigned long long)number(plan, "seed") * 2862933555777941757ULL + 3037000493ULL;
}

static unsigned long chance(unsigned long below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return below ? (unsigned long)(state >> 33) % below : 0;
}

static int path_counts(const char *path) { return dir && path && !strncmp(path, dir, dir_len); }

static int counts(int fd) {
    char link[64], path[1024];
    if (!dir) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return path_counts(path);
}

/* Under the lock. */
static void note(int fd, int synced) {
    struct stat s;
    if (fstat(fd, &s) || !S_ISREG(s.st_mode)) return;
    for (int i = 0; i < file_count; i++)
        if (files[i].ino == s.st_ino) {
            if (synced) files[i].synced = s.st_size;
            return;
        }
    if (file_count < FILES) {
        files[file_count].ino = s.st_ino;
        files[file_count++].synced = s.st_size;
    }
}

static void cut_unsynced(const char *at) {
    DIR *d = opendir(at);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024];
        struct stat s;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", at, e->d_name);
        if (lstat(path, &s)) continue;
        if (S_ISDIR(s.st_mode)) cut_unsynced(path);
        for (int i = 0; i < file_count; i++)
            if (files[i].ino == s.st_ino && s.st_size > files[i].synced) {
                off_t left = files[i].synced + (off_t)chance((unsigned long)(s.st_size - files[i].synced) + 1);
                if (truncate(path, left)) { /* it stays whole then */ }
            }
    }
    closedir(d);
}

static void die(void) {
    if (power) cut_unsynced(dir);
    const char *to = getenv("FAULTS_COUNT");
    if (to) {
        char text[32];
        int n = snprintf(text, sizeof text, "%ld\n", events), fd = real_open(to, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd >= 0 && real_write(fd, text, (size_t)n) < 0) { /* nobody will know */ }
    }
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Counts an event, under the lock from here on; the caller lets it go with `after`. */
static long event(void) {
    pthread_mutex_lock(&lock);
    return ++events;
}

static void after(long n) {
    if (n == kill_at) die();
    pthread_mutex_unlock(&lock);
}

static void before(long n) {
    if (n == kill_at && chance(2)) die();
}

/* Who writes nothing makes no events: so the window ends by the clock too. */
static int is_full(long n) {
    static struct timespec begun;
    struct timespec now;
    if (!full_from || n < full_from || n >= full_to) return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!begun.tv_sec) begun = now;
    return (now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < 1500;
}

/* How much of a write of `len` bytes is done; -1: none, for want of space. */
static ssize_t allowed(long n, size_t len) {
    if (is_full(n)) return n == full_from && len > 1 ? (ssize_t)(1 + chance(len - 1)) : -1;
    if (n == kill_at) {
        if (chance(3) == 0) die();
        return len > 1 && chance(2) ? (ssize_t)(1 + chance(len - 1)) : (ssize_t)len;
    }
    return (ssize_t)len;
}

ssize_t write(int fd, const void *buf, size_t len) {
    if (!counts(fd)) return real_write(fd, buf, len);
    long n = event();
    ssize_t some = allowed(n, len), done = some < 0 ? -1 : real_write(fd, buf, (size_t)some);
    int e = some < 0 ? ENOSPC : errno;
    after(n);
    errno = e;
    return done;
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t at) {
    if (!counts(fd)) return real_pwrite(fd, buf, len, at);
    long n = event();
    ssize_t some = allowed(n, len), done = some < 0 ? -1 : real_pwrite(fd, buf, (size_t)some, at);
    int e = some < 0 ? ENOSPC : errno;
    after(n);
    errno = e;
    return done;
}
ssize_t pwrite64(int fd, const void *buf, size_t len, off_t at) { return pwrite(fd, buf, len, at); }

static int synced(int fd, int (*real)(int)) {
    if (!counts(fd)) return real(fd);
    long n = event();
    before(n);
    int failed = bad_sync && n >= bad_sync, done = failed ? -1 : real(fd), e = failed ? EIO : errno;
    if (failed) bad_sync = 0;
    if (!done) note(fd, 1);
    after(n);
    errno = e;
    return done;
}
int fsync(int fd) { return synced(fd, real_fsync); }
int fdatasync(int fd) { return synced(fd, real_fdatasync); }

int rename(const char *from, const char *to) {
    if (!path_counts(from)) return real_rename(from, to);
    long n = event();
    before(n);
    int done = real_rename(from, to), e = errno;
    after(n);
    errno = e;
    return done;
}

int unlink(const char *path) {
    if (!path_counts(path)) return real_unlink(path);
    long n = event();
    before(n);
    int done = real_unlink(path), e = errno;
    after(n);
    errno = e;
    return done;
}

int ftruncate(int fd, off_t len) {
    if (!counts(fd)) return real_ftruncate(fd, len);
    long n = event();
    before(n);
    int done = real_ftruncate(fd, len), e = errno;
    after(n);
    errno = e;
    return done;
}
int ftruncate64(int fd, off_t len) { return ftruncate(fd, len); }

int fallocate(int fd, int mode, off_t at, off_t len) {
    if (counts(fd)) {
        pthread_mutex_lock(&lock);
        int full = is_full(events);
        pthread_mutex_unlock(&lock);
        if (full) { errno = ENOSPC; return -1; }
    }
    return real_fallocate(fd, mode, at, len);
}
int fallocate64(int fd, int mode, off_t at, off_t len) { return fallocate(fd, mode, at, len); }

static int opened(int fd, int flags) {
    if (fd >= 0 && (flags & O_ACCMODE) != O_RDONLY && counts(fd)) {
        int e = errno;
        pthread_mutex_lock(&lock);
        note(fd, 0);
        pthread_mutex_unlock(&lock);
        errno = e;
    }
    return fd;
}

static int refused(const char *path, int flags) {
    if (!(flags & O_CREAT) || !path_counts(path)) return 0;
    pthread_mutex_lock(&lock);
    int full = is_full(events);
    pthread_mutex_unlock(&lock);
    return full && access(path, F_OK);
}

#define MODE(flags, last) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list v; va_start(v, last); mode = va_arg(v, mode_t); va_end(v); }

int open(const char *path, int flags, ...) {
    MODE(flags, flags)
    if (!real_open) real_open = dlsym(RTLD_NEXT, "open");
    if (refused(path, flags)) { errno = ENOSPC; return -1; }
    return opened(real_open(path, flags, mode), flags);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, flags)
    return open(path, flags | O_LARGEFILE, mode);
}
int openat(int at, const char *path, int flags, ...) {
    MODE(flags, flags)
    if (!real_openat) real_openat = dlsym(RTLD_NEXT, "openat");
    if (refused(path, flags)) { errno = ENOSPC; return -1; }
    return opened(real_openat(at, path, flags, mode), flags);
}
int openat64(int at, const char *path, int flags, ...) {
    MODE(flags, flags)
    return openat(at, path, flags | O_LARGEFILE, mode);
}
