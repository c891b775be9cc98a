// The memory of forward and fused drafting. A workspace serves one call at a time; calls in different workspaces share
// only the thread pool (thread_pool.h).
#pragma once

#include <mutex>
#include <tuple>
#include <vector>

#include "isa/vectors.h"
#include "step/program.h"

namespace paceline {

constexpr long KEPT_BYTES = 4 << 20;  // of one activation buffer between calls; a prompt's takes more

// Kept between calls: growing is rare, and clearing would cost time.
template <class T>
struct StepMemory {
    std::vector<T> activations[NUM_BUFFERS];
    // Of fused drafting: pending inputs, and the logits and tokens of one depth.
    std::vector<T> logits, shared, normed, projected, outputs, mapped;
    std::vector<T> queued, keys_values;  // of a block head: hidden states of the target, and what it makes of them
    std::vector<Acc<T>> processed;
    std::vector<int64_t> tokens, depth, chosen, position, lengths;
    std::vector<uint8_t> valid, ready, wanted;
    std::vector<float> chance, odds;

    void free_large() {
        for (auto &buffer : activations)
            if ((long)(buffer.capacity() * sizeof(T)) > KEPT_BYTES) std::vector<T>().swap(buffer);
    }
    int64_t activation_bytes() const {
        int64_t bytes = 0;
        for (const auto &buffer : activations) bytes += buffer.capacity() * sizeof(T);
        return bytes;
    }
};

class Workspace {
   public:
    std::mutex mutex;  // of the call in progress

    template <class T>
    StepMemory<T> &memory() {
        return std::get<StepMemory<T>>(memory_);
    }

    int64_t activation_bytes() const {
        return std::apply([](const auto &...memory) { return (memory.activation_bytes() + ...); }, memory_);
    }

   private:
    std::tuple<StepMemory<float>, StepMemory<double>, StepMemory<bf16>, StepMemory<f16>> memory_;
};

}  // namespace paceline
