/* The benchmark's application on libcpg: sends, receives and hashes without any Python in between, so that
 * corosync is measured and not its caller. Built where a C compiler is found; corosync.py says how.
 * One group to a process, one thread. Types and constants are those of corosync/cpg.h. */

#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

enum { OK = 1, TRY_AGAIN = 6, DISPATCH_ALL = 2, AGREED = 2, STALLED = -1 };

struct name {
    size_t length;
    char value[128];
};

struct address {
    uint32_t node, pid, reason;
};

typedef void (*deliver_fn)(uint64_t, const struct name *, uint32_t, uint32_t, void *, size_t);
typedef void (*change_fn)(uint64_t, const struct name *, const struct address *, size_t,
                          const struct address *, size_t, const struct address *, size_t);

struct callbacks {
    deliver_fn deliver;
    change_fn change;
};

int cpg_initialize(uint64_t *, struct callbacks *);
int cpg_join(uint64_t, const struct name *);
int cpg_fd_get(uint64_t, int *);
int cpg_dispatch(uint64_t, int);
int cpg_mcast_joined(uint64_t, int, const struct iovec *, unsigned int);

struct work {
    uint32_t node;            /* our own */
    uint32_t sending, senders, one_outstanding;
    uint32_t burst, pool_messages;
    uint64_t size, seconds_ns, patience_ns;
    const char *pool;         /* pool_messages of size bytes each */
    uint64_t *took;           /* room for took_max latencies */
    uint64_t took_max;
};

struct report {
    uint64_t count, bytes, hash, elapsed_ns, refused, took;
};

static uint64_t handle;
static int descriptor;
static uint32_t own_node, finals, own_arrived;
static uint64_t members, changed_ns, last_ns, lanes[4], count, bytes;
static const char final[] = "final";

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Four lanes of FNV-1a over words: order and content both count, and it keeps up with memory. */
static void hash_in(const char *data, size_t length) {
    const uint64_t prime = 1099511628211u;
    uint64_t word;
    while (length >= 32) {
        for (int lane = 0; lane < 4; lane++) {
            memcpy(&word, data + 8 * lane, 8);
            lanes[lane] = (lanes[lane] ^ word) * prime;
        }
        data += 32;
        length -= 32;
    }
    while (length--)
        lanes[0] = (lanes[0] ^ (unsigned char)*data++) * prime;
}

static void on_deliver(uint64_t h, const struct name *group, uint32_t node, uint32_t pid, void *data, size_t length) {
    (void)h, (void)group, (void)pid;
    if (length == sizeof final - 1 && !memcmp(data, final, length)) {
        finals++;
        return;
    }
    hash_in(data, length);
    count++;
    bytes += length;
    own_arrived |= node == own_node;
}

static void on_change(uint64_t h, const struct name *group, const struct address *now, size_t n,
                      const struct address *left, size_t n_left, const struct address *joined, size_t n_joined) {
    (void)h, (void)group, (void)now, (void)left, (void)n_left, (void)joined, (void)n_joined;
    members = n;
    changed_ns = now_ns();
}

int bench_initialize(void) {
    static struct callbacks callbacks = {on_deliver, on_change};
    return cpg_initialize(&handle, &callbacks);
}

int bench_join(const char *text) {
    struct name group = {strlen(text), {0}};
    memcpy(group.value, text, group.length);
    int code = cpg_join(handle, &group);
    return code == OK ? cpg_fd_get(handle, &descriptor) : code;
}

int bench_dispatch(int wait_ms) {
    struct pollfd waiting = {descriptor, POLLIN, 0};
    uint64_t before = count;
    int code = poll(&waiting, 1, wait_ms) > 0 ? cpg_dispatch(handle, DISPATCH_ALL) : OK;
    if (count > before)
        last_ns = now_ns();
    return code == TRY_AGAIN ? OK : code;
}

uint64_t bench_members(void) { return members; }

uint64_t bench_changed_ns(void) { return changed_ns; }

static int send_one(const char *data, size_t length) {
    struct iovec part = {(void *)data, length};
    return cpg_mcast_joined(handle, AGREED, &part, 1);
}

/* The same steps as the Python application's, so that the two can stand in for each other. */
int bench_run(const struct work *work, struct report *report) {
    uint64_t started = now_ns(), until = started + work->seconds_ns, sent = 0, sent_at = 0, now;
    uint32_t sending = work->sending, waiting = 0;
    memset(report, 0, sizeof *report);
    memset(lanes, 0, sizeof lanes);
    count = bytes = finals = own_arrived = 0;
    own_node = work->node;
    last_ns = started;
    while (finals < work->senders) {
        int full = 0, code = OK;
        now = now_ns();
        if (now > until + work->patience_ns)
            return STALLED;
        if (sending && now >= until && !(work->one_outstanding && waiting)) {
            code = send_one(final, sizeof final - 1);
            sending = code == TRY_AGAIN;
        } else if (sending && now < until && !(work->one_outstanding && waiting)) {
            sent_at = now;
            for (uint32_t i = 0; i < (work->one_outstanding ? 1 : work->burst) && !full; i++) {
                code = send_one(work->pool + work->size * (sent % work->pool_messages), work->size);
                full = code == TRY_AGAIN;
                report->refused += full;
                sent += !full;
            }
            waiting = !full;
        }
        if (code != OK && code != TRY_AGAIN)
            return code;
        own_arrived = 0;
        code = bench_dispatch(full ? 1 : sending && !(work->one_outstanding && waiting) ? 0 : 20);
        if (code != OK)
            return code;
        if (work->one_outstanding && waiting && own_arrived) {
            if (report->took < work->took_max)
                work->took[report->took++] = now_ns() - sent_at;
            waiting = 0;
        }
    }
    report->count = count;
    report->bytes = bytes;
    report->hash = lanes[0] ^ (lanes[1] << 1) ^ (lanes[2] << 2) ^ (lanes[3] << 3);
    report->elapsed_ns = last_ns - started;
    return OK;
}
