// Hidden states along the accepted path, for draft heads: core/ops.py's queue_states and keep_last.
// kernels/cpu/step_structs.py mirrors it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace paceline {

struct NodeStates {  // steps and size in bytes
    const char *data;
    int64_t row_step, step, size;
};

struct StateQueue {
    int64_t rows, num_states;
    const NodeStates *states;
    const int64_t *path;  // [rows, path_step] nodes after the root; null: those of a chain
    int64_t path_step;
    const int64_t *first, *until;  // null: from the root on
    char *queue;
    int64_t queue_row_step;  // in bytes
    int64_t *count;
};

// Steps and size in bytes, path_step in elements.
struct LastStates {
    int64_t rows, count, size;
    const char *states;
    int64_t row_step, step;
    const int64_t *path;  // as above
    int64_t path_step;
    const int64_t *num;  // of each row, to be appended
    char *kept;          // the last count of each row
    int64_t kept_row_step;
};

inline void queue_states(const StateQueue &q) {
    for (int64_t row = 0; row < q.rows; row++) {
        int64_t size = 0;
        for (int64_t part = 0; part < q.num_states; part++) size += q.states[part].size;
        char *into = q.queue + row * q.queue_row_step + q.count[row] * size;
        const int64_t first = q.first ? q.first[row] : 0;
        for (int64_t at = first; at < q.until[row]; at++) {
            const int64_t node = at && q.path ? std::max<int64_t>(q.path[row * q.path_step + at - 1], 0) : at;
            for (int64_t part = 0; part < q.num_states; part++) {
                const NodeStates &states = q.states[part];
                std::memcpy(into, states.data + row * states.row_step + node * states.step, states.size);
                into += states.size;
            }
        }
        q.count[row] += q.until[row] - first;
    }
}

inline void keep_last(const LastStates &t) {
    for (int64_t row = 0; row < t.rows; row++) {
        char *kept = t.kept + row * t.kept_row_step;
        const int64_t num = t.num[row], old = std::max<int64_t>(t.count - num, 0);
        std::memmove(kept, kept + num * t.size, old * t.size);
        for (int64_t i = old; i < t.count; i++) {
            const int64_t at = num - t.count + i;
            const int64_t node = at && t.path ? std::max<int64_t>(t.path[row * t.path_step + at - 1], 0) : at;
            std::memcpy(kept + i * t.size, t.states + row * t.row_step + node * t.step, t.size);
        }
    }
}

}  // namespace paceline
