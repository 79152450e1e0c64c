/* A stand-in for the CUDA driver, libcuda.so.1, for tests on machines without a GPU.
 *
 * It runs no kernel. It keeps track of contexts and streams as far as the launch path looks at them, and records
 * every launch: stand_in_launch() hands a record to the test, which loads this library with ctypes. A driver learns
 * from the kernel's code how many arguments it has; here the test says so with stand_in_arguments().
 * Environment: STAND_IN_DEVICES, the number of devices (1).
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
enum { MOST_ARGUMENTS = 64, MOST_RECORDS = 4096, MOST_DEVICES = 8 };

typedef struct {
    uint64_t function, stream, context;
    uint32_t grid, block, shared, arguments;
    uint64_t words[MOST_ARGUMENTS];
} Record;

typedef struct { uint64_t kind, first, second; } Event; /* what happened to streams, in order */

static Record records[MOST_RECORDS];
static Event events[MOST_RECORDS];
static int record_count, event_count, argument_count, next_failure, loaded;
static char entry_names[256][256];
static _Thread_local int stack[16]; /* device numbers + 1 of the contexts that are current */
static _Thread_local int depth;

static int devices(void) {
    const char *text = getenv("STAND_IN_DEVICES");
    return text ? atoi(text) : 1;
}
static uint64_t context_of(int device) { return 0xC000 + (uint64_t)device; }
static int current(void) { return depth ? stack[depth - 1] : 0; }

/* for the test */
void stand_in_arguments(int count) { argument_count = count; }
void stand_in_fail_next(int code) { next_failure = code; }
int stand_in_launches(void) { return record_count; }
int stand_in_events(void) { return event_count; }
const Record *stand_in_launch(int i) { return &records[i]; }
const Event *stand_in_event(int i) { return &events[i]; }
const char *stand_in_entry(int i) { return entry_names[i]; }

/* the driver */
static int succeed(void) { return SUCCESS; }
static int driver_version(int *version) { *version = 13000; return SUCCESS; }
static int device_count(int *count) { *count = devices(); return SUCCESS; }
static int device_get(int *device, int ordinal) {
    *device = ordinal;
    return ordinal < devices() ? SUCCESS : NO_DEVICE;
}
static int device_attribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : 0; /* compute capability 9.0 */
    return SUCCESS;
}
static int retain(void **context, int device) { *context = (void *)context_of(device); return SUCCESS; }
static int get_current(void **context) {
    *context = current() ? (void *)context_of(current() - 1) : NULL;
    return SUCCESS;
}
static int set_current(void *context) {
    if (!depth) depth = 1;
    stack[depth - 1] = (int)((uint64_t)context - context_of(0)) + 1;
    return SUCCESS;
}
static int push(void *context) {
    depth++;
    stack[depth - 1] = (int)((uint64_t)context - context_of(0)) + 1;
    return SUCCESS;
}
static int pop(void **context) {
    get_current(context);
    if (!depth) return INVALID_CONTEXT;
    depth--;
    return SUCCESS;
}
static int current_device(int *device) {
    *device = current() - 1;
    return current() ? SUCCESS : INVALID_CONTEXT;
}
static int load_library(void **library, const void *code) {
    if (memcmp(code, "\x7f" "ELF", 4)) return INVALID_VALUE;
    *library = (void *)(uint64_t)(0x1000 + loaded);
    return SUCCESS;
}
static int get_kernel(void **kernel, void *library, const char *name) {
    (void)library;
    if (!strcmp(name, "missing")) return NOT_FOUND;
    strncpy(entry_names[loaded % 256], name, 255);
    *kernel = (void *)(uint64_t)(0x2000 + loaded++);
    return SUCCESS;
}
static int get_function(void **function, void *kernel) {
    if (!current()) return INVALID_CONTEXT;
    *function = (void *)((uint64_t)kernel + 0x1000);
    return SUCCESS;
}
static int launch(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                  unsigned shared, void *stream, void **arguments, void **extra) {
    (void)gy, (void)gz, (void)by, (void)bz, (void)extra;
    if (next_failure) {
        int code = next_failure;
        next_failure = 0;
        return code;
    }
    if (!current()) return INVALID_CONTEXT;
    Record *record = &records[record_count % MOST_RECORDS];
    record_count++;
    record->function = (uint64_t)function, record->stream = (uint64_t)stream, record->context = context_of(current() - 1);
    record->grid = gx, record->block = bx, record->shared = shared, record->arguments = (uint32_t)argument_count;
    for (int i = 0; i < argument_count && i < MOST_ARGUMENTS; i++) memcpy(&record->words[i], arguments[i], 8);
    return SUCCESS;
}
static void note(uint64_t kind, uint64_t first, uint64_t second) {
    Event event = {kind, first, second};
    events[event_count++ % MOST_RECORDS] = event;
}
static int event_create(void **event, unsigned flags) {
    *event = (void *)0xE000;
    note(1, flags, 0);
    return SUCCESS;
}
static int event_record(void *event, void *stream) { note(2, (uint64_t)event, (uint64_t)stream); return SUCCESS; }
static int event_destroy(void *event) { note(4, (uint64_t)event, 0); return SUCCESS; }
static int stream_wait(void *stream, void *event, unsigned flags) {
    (void)flags;
    note(3, (uint64_t)event, (uint64_t)stream);
    return SUCCESS;
}
static int synchronise(void) { note(9, 0, 0); return SUCCESS; } /* the launch path must never do this */
static int error_name(int code, const char **text) {
    *text = code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : code == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_OTHER";
    return SUCCESS;
}
static int error_string(int code, const char **text) { (void)code; *text = "text of the error"; return SUCCESS; }

typedef int (*Entry)();
static const struct { const char *name; Entry function; } table[] = {
    {"cuDriverGetVersion", (Entry)driver_version}, {"cuDeviceGetCount", (Entry)device_count},
    {"cuDeviceGet", (Entry)device_get}, {"cuDeviceGetAttribute", (Entry)device_attribute},
    {"cuDevicePrimaryCtxRetain", (Entry)retain}, {"cuCtxGetCurrent", (Entry)get_current},
    {"cuCtxSetCurrent", (Entry)set_current}, {"cuCtxPushCurrent", (Entry)push}, {"cuCtxPopCurrent", (Entry)pop},
    {"cuCtxGetDevice", (Entry)current_device}, {"cuLibraryLoadData", (Entry)load_library},
    {"cuLibraryGetKernel", (Entry)get_kernel}, {"cuKernelGetFunction", (Entry)get_function},
    {"cuLaunchKernel", (Entry)launch}, {"cuEventCreate", (Entry)event_create}, {"cuEventRecord", (Entry)event_record},
    {"cuEventDestroy", (Entry)event_destroy}, {"cuStreamWaitEvent", (Entry)stream_wait},
    {"cuCtxSynchronize", (Entry)synchronise}, {"cuStreamSynchronize", (Entry)synchronise},
    {"cuEventSynchronize", (Entry)synchronise}, {"cuGetErrorName", (Entry)error_name},
    {"cuGetErrorString", (Entry)error_string},
};

static void *find(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name)) return (void *)table[i].function;
    return (void *)succeed;
}
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    *function = strcmp(name, "cuGetProcAddress") ? find(name) : (void *)cuGetProcAddress_v2;
    if (status) *status = 0;
    return SUCCESS;
}
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
int cuInit(unsigned flags) { (void)flags; return SUCCESS; }
int cuDriverGetVersion(int *version) { return driver_version(version); }
