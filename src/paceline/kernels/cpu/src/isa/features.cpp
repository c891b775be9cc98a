// Detects the features of the processor that the operating system supports too. Compiled without flags of any
// instruction set and loaded before any other library, so that it runs on every processor.
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "export.h"

namespace {

class Names {
   public:
    Names(char *out, int64_t size) : out_(out), left_(size) { *out = 0; }
    void add(bool has, const char *name) {
        const int64_t length = std::strlen(name) + 1;
        if (!has || length >= left_) return;
        std::strcat(std::strcat(out_, name), " ");
        left_ -= length;
    }

   private:
    char *out_;
    int64_t left_;
};

#if defined(__x86_64__)

uint64_t enabled_states() {  // XCR0: the register states that the operating system saves
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

void detect(Names &names) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return;
    names.add(b == signature_INTEL_ebx && c == signature_INTEL_ecx && d == signature_INTEL_edx, "intel");
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const uint64_t states = c >> 27 & 1 ? enabled_states() : 0;  // xgetbv needs OSXSAVE
    if ((states & 0x6) != 0x6 || !(c >> 28 & 1)) return;         // the halves of ymm registers; AVX
    names.add(c >> 12 & 1, "fma");
    names.add(c >> 29 & 1, "f16c");
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    const uint32_t subleaves = a;
    names.add(b >> 5 & 1, "avx2");
    if ((states & 0xe6) != 0xe6) return;  // and masks, the halves of zmm registers, zmm16 to zmm31
    names.add(b >> 16 & 1, "avx512f");
    names.add(b >> 17 & 1, "avx512dq");
    names.add(b >> 28 & 1, "avx512cd");
    names.add(b >> 30 & 1, "avx512bw");
    names.add(b >> 31 & 1, "avx512vl");
    names.add(c >> 1 & 1, "avx512vbmi");
    names.add(c >> 11 & 1, "avx512vnni");
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) names.add(a >> 5 & 1, "avx512bf16");
}

#elif defined(__aarch64__) && defined(__linux__)

void detect(Names &names) {
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    names.add(first >> 20 & 1, "dotprod");  // HWCAP_ASIMDDP
    names.add(second >> 13 & 1, "i8mm");    // HWCAP2_I8MM
    names.add(second >> 14 & 1, "bf16");    // HWCAP2_BF16
}

#elif defined(__aarch64__) && defined(__APPLE__)

bool has(const char *key) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(key, &value, &size, nullptr, 0) == 0 && value;
}

void detect(Names &names) {
    names.add(has("hw.optional.arm.FEAT_DotProd"), "dotprod");
    names.add(has("hw.optional.arm.FEAT_I8MM"), "i8mm");
    names.add(has("hw.optional.arm.FEAT_BF16"), "bf16");
}

#else

void detect(Names &) {}

#endif

}  // namespace

// The names of the features as in the compiler's flags, and of the vendor where a choice depends on it, separated by
// spaces, in at most size bytes.
PACELINE_API void paceline_cpu_features(char *out, int64_t size) {
    Names names(out, size);
    detect(names);
}
