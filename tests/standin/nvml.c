/* A stand-in for NVIDIA's libnvidia-ml.so.1, for tests on machines without a card.
 *
 * Its state is the file state.txt beside the library, read again at every call, one fact per line
 * (see FakeDriver in __init__.py, which writes it):
 *
 *   driver <version>
 *   cuda <number>
 *   device <index> <uuid> <minor> <bus id> <total> <used> <reserved> <mig> <recovery> <display> <name>
 *   slice <device> <index> <uuid> <gpu slices> <compute slices> <MiB> <name>
 *   process <device> <slice or -1> <c|m|g> <pid> <used>
 *   nvlink <device> <link> <remote bus id>
 *   pair <a> <b> <p2p status> <nvlink p2p status> <ancestor>
 *   fault <function or *> <device or -1 for any> <error code | hang | abort | print>
 *
 * Sizes are MiB; a negative one is "not supported" (or, of a process, "not available"), and so
 * is a slice's uuid "-". A name is the rest of the line.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
enum { MAX_LINKS = 36, MIG_SLOTS = 7 };

typedef void *handle_t;
typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process_t;
typedef struct {
    unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} attributes_t;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    unsigned type, result;
    union { unsigned ui; unsigned long long ull; } value;
} field_t;
typedef struct {
    int index, minor, mig, recovery, display;
    long total, used, reserved;
    char uuid[96], bus_id[32], name[96];
} card_t;

static int initialised;

static FILE *state(void) {
    Dl_info info;
    char path[4096], *slash;
    if (!dladdr((void *)state, &info)) return NULL;
    snprintf(path, sizeof path - 16, "%s", info.dli_fname);
    slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "state.txt");
    return fopen(path, "r");
}

/* Runs the statements for each line of the state file. */
#define EACH_LINE(...) do { \
    char line[1024]; FILE *file = state(); \
    if (file) { while (fgets(line, sizeof line, file)) { line[strcspn(line, "\n")] = 0; __VA_ARGS__ } \
                fclose(file); } } while (0)

/* A handle is the card's index + 1, with the slice's index + 1 above it. */
static handle_t handle_of(int card, int slice) {
    return (handle_t)(uintptr_t)(card + 1 + ((slice + 1) << 16));
}
static int card_of(handle_t h) { return (int)((uintptr_t)h & 0xffff) - 1; }
static int slice_of(handle_t h) { return (int)((uintptr_t)h >> 16) - 1; }

static int fault(const char *function, int card) {
    int code = OK; /* of a card means of its whole: slices answer on */
    EACH_LINE({
        char name[128], what[32]; int device;
        if (sscanf(line, "fault %127s %d %31s", name, &device, what) != 3) continue;
        if (strcmp(name, "*") && strcmp(name, function)) continue;
        if (device != -1 && device != card) continue;
        if (!strcmp(what, "hang")) { for (;;) pause(); }
        else if (!strcmp(what, "abort")) abort();
        else if (!strcmp(what, "print")) { printf("a library that prints\n"); fflush(stdout); }
        else code = atoi(what);
    });
    return code;
}

#define FAULT(card) do { int code = fault(__func__, card); if (code) return code; } while (0)
#define FAULT_OF(h) do { if (!initialised) return UNINITIALIZED; \
                          FAULT(slice_of(h) >= 0 ? -2 : card_of(h)); } while (0)

static int find(handle_t h, card_t *card) {
    int found = NOT_FOUND;
    EACH_LINE({
        card_t c; memset(&c, 0, sizeof c);
        if (sscanf(line, "device %d %95s %d %31s %ld %ld %ld %d %d %d %95[^\n]", &c.index, c.uuid,
                   &c.minor, c.bus_id, &c.total, &c.used, &c.reserved, &c.mig, &c.recovery,
                   &c.display, c.name) == 11 && c.index == card_of(h)) { *card = c; found = OK; }
    });
    return found;
}

static int find_slice(int device, int slice, char *uuid, attributes_t *a, char *name) {
    int found = NOT_FOUND;
    EACH_LINE({
        int d; int s; unsigned g; unsigned c; unsigned long long m; char u[96]; char n[96];
        if (sscanf(line, "slice %d %d %95s %u %u %llu %95[^\n]", &d, &s, u, &g, &c, &m, n) == 7
            && d == device && s == slice) {
            strcpy(uuid, u); strcpy(name, n);
            memset(a, 0, sizeof *a);
            a->gpu_slices = g; a->compute_slices = c; a->memory_mib = m; found = OK;
        }
    });
    return found;
}

static int text(char *to, unsigned size, const char *from) {
    if (strlen(from) >= size) return TOO_SMALL;
    strcpy(to, from);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; FAULT(-1); initialised = 1; return OK; }
int nvmlShutdown(void) { initialised = 0; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    char version[80] = "";
    FAULT(-1);
    EACH_LINE({ sscanf(line, "driver %79s", version); });
    return text(to, size, version);
}

int nvmlSystemGetCudaDriverVersion_v2(int *to) {
    FAULT(-1);
    *to = 0;
    EACH_LINE({ sscanf(line, "cuda %d", to); });
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *to) {
    if (!initialised) return UNINITIALIZED;
    FAULT(-1);
    *to = 0;
    EACH_LINE({ if (!strncmp(line, "device ", 7)) ++*to; });
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *to) {
    card_t card;
    *to = handle_of((int)index, -1);
    FAULT_OF(*to);
    return find(*to, &card) ? INVALID : OK;
}

int nvmlDeviceGetUUID(handle_t h, char *to, unsigned size) {
    card_t card; attributes_t a; char uuid[96], name[96];
    FAULT_OF(h);
    if (slice_of(h) >= 0) {
        if (find_slice(card_of(h), slice_of(h), uuid, &a, name)) return NOT_FOUND;
        return strcmp(uuid, "-") ? text(to, size, uuid) : UNSUPPORTED;
    }
    return find(h, &card) ? NOT_FOUND : text(to, size, card.uuid);
}

int nvmlDeviceGetName(handle_t h, char *to, unsigned size) {
    card_t card; attributes_t a; char uuid[96], name[96];
    FAULT_OF(h);
    if (slice_of(h) >= 0)
        return find_slice(card_of(h), slice_of(h), uuid, &a, name) ? NOT_FOUND : text(to, size, name);
    return find(h, &card) ? NOT_FOUND : text(to, size, card.name);
}

int nvmlDeviceGetMinorNumber(handle_t h, unsigned *to) {
    card_t card;
    FAULT_OF(h);
    if (find(h, &card)) return NOT_FOUND;
    *to = (unsigned)card.minor;
    return card.minor < 0 ? UNSUPPORTED : OK;
}

int nvmlDeviceGetPciInfo_v3(handle_t h, pci_t *to) {
    card_t card;
    FAULT_OF(h);
    if (find(h, &card)) return NOT_FOUND;
    memset(to, 0, sizeof *to);
    return text(to->bus_id, sizeof to->bus_id, card.bus_id);
}

int nvmlDeviceGetMemoryInfo(handle_t h, memory_t *to) {
    card_t card;
    FAULT_OF(h);
    if (slice_of(h) >= 0 || find(h, &card) || card.total < 0) return UNSUPPORTED;
    to->total = (unsigned long long)card.total << 20;
    to->used = (unsigned long long)(card.used + card.reserved) << 20; /* as the real one counts */
    to->free = to->total - to->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(handle_t h, memory_v2_t *to) {
    card_t card;
    FAULT_OF(h);
    if (to->version != 0x02000028) return 25;
    if (slice_of(h) >= 0 || find(h, &card) || card.total < 0) return UNSUPPORTED;
    to->total = (unsigned long long)card.total << 20;
    to->used = (unsigned long long)card.used << 20;
    to->reserved = (unsigned long long)card.reserved << 20;
    to->free = to->total - to->used - to->reserved;
    return OK;
}

int nvmlDeviceGetMigMode(handle_t h, unsigned *current, unsigned *pending) {
    card_t card;
    FAULT_OF(h);
    if (find(h, &card)) return NOT_FOUND;
    if (card.mig < 0) return UNSUPPORTED;
    *current = *pending = (unsigned)card.mig;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(handle_t h, unsigned *to) {
    FAULT_OF(h);
    *to = MIG_SLOTS;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle_t h, unsigned index, handle_t *to) {
    attributes_t a; char uuid[96], name[96];
    FAULT_OF(h);
    *to = handle_of(card_of(h), (int)index);
    return find_slice(card_of(h), (int)index, uuid, &a, name);
}

int nvmlDeviceGetAttributes_v2(handle_t h, attributes_t *to) {
    char uuid[96], name[96];
    FAULT_OF(h);
    return find_slice(card_of(h), slice_of(h), uuid, to, name);
}

static int list(handle_t h, char kind, unsigned *count, process_t *to) {
    unsigned room = to ? *count : 0, n = 0;
    EACH_LINE({
        int d; int s; char k; unsigned pid; long used;
        if (sscanf(line, "process %d %d %c %u %ld", &d, &s, &k, &pid, &used) != 5) continue;
        /* A card lists the processes of its slices too. */
        if (d != card_of(h) || k != kind || (slice_of(h) >= 0 && s != slice_of(h))) continue;
        if (n < room) {
            memset(&to[n], 0, sizeof to[n]);
            to[n].pid = pid;
            to[n].used = used < 0 ? ~0ULL : (unsigned long long)used << 20;
        }
        ++n;
    });
    *count = n;
    return n > room ? TOO_SMALL : OK;
}

#define LIST(function, kind) \
    int function(handle_t h, unsigned *count, process_t *to) { \
        FAULT_OF(h); return list(h, kind, count, to); }
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'c')
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'c')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'm')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'g')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g')

int nvmlDeviceGetFieldValues(handle_t h, int count, field_t *values) {
    card_t card;
    FAULT_OF(h);
    if (find(h, &card)) return NOT_FOUND;
    for (int i = 0; i < count; ++i) {
        int known = values[i].field == 230 && card.recovery >= 0;
        values[i].result = known ? OK : UNSUPPORTED;
        values[i].type = 1;
        values[i].value.ull = ~0ULL; /* only the told type's bytes may be read */
        values[i].value.ui = (unsigned)card.recovery;
    }
    return OK;
}

int nvmlDeviceGetDisplayActive(handle_t h, unsigned *to) {
    card_t card;
    FAULT_OF(h);
    if (find(h, &card)) return NOT_FOUND;
    *to = (unsigned)card.display;
    return card.display < 0 ? UNSUPPORTED : OK;
}

static int remote(handle_t h, unsigned link, char *bus_id) {
    int found = UNSUPPORTED;
    EACH_LINE({
        int d; unsigned l; char b[32];
        if (sscanf(line, "nvlink %d %u %31s", &d, &l, b) == 3 && d == card_of(h) && l == link) {
            strcpy(bus_id, b); found = OK;
        }
    });
    return found;
}

int nvmlDeviceGetNvLinkState(handle_t h, unsigned link, unsigned *to) {
    char bus_id[32];
    FAULT_OF(h);
    if (link >= MAX_LINKS) return INVALID;
    *to = 1;
    return remote(h, link, bus_id);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle_t h, unsigned link, pci_t *to) {
    FAULT_OF(h);
    memset(to, 0, sizeof *to);
    return remote(h, link, to->bus_id);
}

static int pair(handle_t h, handle_t other, int *p2p, int *nvlink, int *ancestor) {
    int found = UNSUPPORTED;
    EACH_LINE({
        int a; int b; int p; int n; int c;
        if (sscanf(line, "pair %d %d %d %d %d", &a, &b, &p, &n, &c) != 5) continue;
        if ((a == card_of(h) && b == card_of(other)) || (b == card_of(h) && a == card_of(other))) {
            *p2p = p; *nvlink = n; *ancestor = c; found = OK;
        }
    });
    return found;
}

int nvmlDeviceGetP2PStatus(handle_t h, handle_t other, int which, int *to) {
    int p2p, nvlink, ancestor, code;
    FAULT_OF(h);
    code = pair(h, other, &p2p, &nvlink, &ancestor);
    if (code == OK) *to = which == 2 ? nvlink : p2p;
    return code;
}

int nvmlDeviceGetTopologyCommonAncestor(handle_t h, handle_t other, int *to) {
    int p2p, nvlink, code;
    FAULT_OF(h);
    code = pair(h, other, &p2p, &nvlink, to);
    return code;
}
