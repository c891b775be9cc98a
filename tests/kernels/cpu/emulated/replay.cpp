// Replays recorded calls of the kernel's C ABI (recording.py) with the library of one instruction set, which is given:
// under an emulator where the processor lacks the set. Exits with 1 where a result is not close to the recorded one, or
// where two results that must be bitwise equal are not.
//
//     replay LIBRARY RECORDING
//     replay LIBRARY --integers NAME...    prints what each function returns for each of the first integers
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace {

enum Event : int64_t { REGION = 1, SET, POINTER, CALL, CLOSE, EQUAL, CASE };
enum Argument : int64_t { INTEGER, ADDRESS, WORKSPACE };
enum ElementKind : int64_t { INTEGERS, FLOAT64, FLOAT32, BFLOAT16, FLOAT16 };
constexpr double TOLERANCES[] = {0, 1e-9, 1e-4, 1e-1, 2e-2};  // relative to the largest of the region, or to 1
constexpr int64_t NUM_INTEGERS = 8;
constexpr int MAX_ARGUMENTS = 8, MAX_FAILURES = 20;

[[noreturn]] void fail(const std::string &message) {
    std::fprintf(stderr, "replay: %s\n", message.c_str());
    std::exit(2);
}

// Memory before a page that cannot be read, so that reads beyond the end of a region fail (up to its alignment).
struct Region {
    char *data = nullptr;
    int64_t size = 0, kind = 0;

    void allocate(int64_t bytes) {
        const int64_t page = sysconf(_SC_PAGESIZE), aligned = (bytes + 63) / 64 * 64,
                      pages = (aligned + page - 1) / page + 1;
        void *memory = mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || mprotect((char *)memory + (pages - 1) * page, page, PROT_NONE)) fail("no memory");
        data = (char *)memory + (pages - 1) * page - aligned;
        size = bytes;
    }
};

float from_half(uint16_t half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const float size = exponent == 31  ? (fraction ? NAN : INFINITY)
                       : exponent == 0 ? std::ldexp(float(fraction), -24)
                                       : std::ldexp(float(fraction + 1024), exponent - 25);
    return half >> 15 ? -size : size;
}

double element(const char *data, int64_t kind, int64_t at) {
    if (kind == FLOAT64) return ((const double *)data)[at];
    if (kind == FLOAT32) return ((const float *)data)[at];
    const uint16_t half = ((const uint16_t *)data)[at];
    if (kind == FLOAT16) return from_half(half);
    const uint32_t bits = uint32_t(half) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

std::string current_case, current_call;

// Names the call that reads or writes beyond its memory.
void on_signal(int number) {
    std::fprintf(stderr, "%s: %s in %s\n", current_case.c_str(), strsignal(number), current_call.c_str());
    signal(number, SIG_DFL);
    raise(number);
}

class Replay {
   public:
    Replay(void *library, const char *path) : library_(library) {
        std::ifstream file(path, std::ios::binary);
        if (!file) fail(std::string("cannot read ") + path);
        events_.assign(std::istreambuf_iterator<char>(file), {});
    }

    int run() {
        while (at_ < events_.size()) step(integer());
        std::printf("%ld calls, %ld results close, %ld equal, %ld failures; largest differences: float64 %.2g, "
                    "float32 %.2g, bfloat16 %.2g, float16 %.2g\n",
                    calls_, close_, equal_, failures_, worst_[FLOAT64], worst_[FLOAT32], worst_[BFLOAT16],
                    worst_[FLOAT16]);
        return failures_ ? 1 : 0;
    }

   private:
    void *library_;
    std::vector<char> events_;
    size_t at_ = 0;
    std::map<int64_t, Region> regions_;
    std::map<int64_t, void *> workspaces_;
    long calls_ = 0, close_ = 0, equal_ = 0, failures_ = 0;
    double worst_[5] = {};

    int64_t integer() {
        int64_t value;
        std::memcpy(&value, &events_.at(at_ + 7) - 7, 8);
        at_ += 8;
        return value;
    }
    const char *bytes(int64_t size) {
        const char *from = events_.data() + at_;
        at_ += size;
        if (at_ > events_.size()) fail("the recording ends early");
        return from;
    }
    std::string text() {
        const int64_t size = integer();
        return std::string(bytes(size), size);
    }
    char *place() {
        const int64_t region = integer();
        return regions_.at(region).data + integer();
    }
    template <class F>
    F function(const std::string &name) {
        void *found = dlsym(library_, name.c_str());
        if (!found) fail("the library has no " + name);
        return (F)found;
    }
    void failure(const std::string &what) {
        if (++failures_ > MAX_FAILURES) return;
        std::fprintf(stderr, "%s: after %s: %s\n", current_case.c_str(), current_call.c_str(), what.c_str());
    }

    void step(int64_t event) {
        switch (event) {
            case REGION: {
                Region &region = regions_[integer()];
                region.allocate(integer());
                region.kind = integer();
                return;
            }
            case SET: {
                Region &region = regions_.at(integer());
                const int64_t size = integer();
                if (size != region.size) fail("a region of another size");
                return (void)std::memcpy(region.data, bytes(size), size);
            }
            case POINTER: {
                char *where = place(), *target = place();
                return (void)std::memcpy(where, &target, 8);
            }
            case CALL: return call();
            case CLOSE: return close();
            case EQUAL: {
                const char *one = place(), *other = place();
                equal_++;
                if (std::memcmp(one, other, integer())) failure("results that must be bitwise equal are not");
                return;
            }
            case CASE: return (void)(current_case = text());
            default: fail("an unknown event");
        }
    }

    void call() {
        current_call = text();
        const int64_t count = integer();
        int64_t arguments[MAX_ARGUMENTS] = {};
        if (count > MAX_ARGUMENTS) fail("too many arguments");
        for (int64_t i = 0; i < count; i++) {
            const int64_t kind = integer();
            if (kind == ADDRESS) {
                arguments[i] = (int64_t)place();
                continue;
            }
            arguments[i] = integer(), integer();
            if (kind != WORKSPACE) continue;
            void *&workspace = workspaces_[arguments[i]];
            if (!workspace) workspace = function<void *(*)()>("paceline_new_workspace")();
            arguments[i] = (int64_t)workspace;
        }
        const int64_t *a = arguments;
        using Entry = void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
        function<Entry>(current_call)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
        calls_++;
    }

    void close() {
        const Region &region = regions_.at(integer());
        const char *found = region.data + integer();
        const int64_t size = integer();
        const char *expected = bytes(size);
        close_++;
        if (std::memcmp(found, expected, size) == 0) return;
        if (region.kind == INTEGERS) return failure("integers differ");
        const std::vector<char> aligned(expected, expected + size);
        const int64_t count = size / (region.kind == FLOAT64 ? 8 : region.kind == FLOAT32 ? 4 : 2);
        double most = 0, largest = 1;
        int64_t where = 0;
        for (int64_t i = 0; i < count; i++) {
            const double mine = element(found, region.kind, i), other = element(aligned.data(), region.kind, i);
            if (std::isfinite(other)) largest = std::max(largest, std::fabs(other));
            if (mine == other || (mine != mine && other != other)) continue;
            const double apart = std::isfinite(mine) && std::isfinite(other) ? std::fabs(mine - other) : INFINITY;
            if (apart > most) most = apart, where = i;
        }
        most /= largest;
        worst_[region.kind] = std::max(worst_[region.kind], most);
        if (most > TOLERANCES[region.kind])
            failure("element " + std::to_string(where) + " is " + std::to_string(element(found, region.kind, where)) +
                    ", expected " + std::to_string(element(aligned.data(), region.kind, where)));
    }
};

}  // namespace

int main(int count, char **arguments) {
    if (count < 3) fail("usage: replay LIBRARY RECORDING | --integers NAME...");
    for (int number : {SIGSEGV, SIGBUS}) signal(number, on_signal);
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    if (std::strcmp(arguments[2], "--integers")) return Replay(library, arguments[2]).run();
    for (int i = 3; i < count; i++) {
        const auto function = (int64_t(*)(int64_t))dlsym(library, arguments[i]);
        if (!function) fail(std::string("the library has no ") + arguments[i]);
        for (int64_t value = 0; value < NUM_INTEGERS; value++)
            std::printf("%s %ld %ld\n", arguments[i], (long)value, (long)function(value));
    }
    return 0;
}
