// An index of token sequences: where the last tokens of a sequence have occurred before, and what followed them.
//
// As in match finders of LZ77 compressors, each position is linked to the one before with the same hash of its last
// tokens, so that inserting a token and forgetting the oldest ones take constant time, and a search visits the latest
// occurrences first. core/token_index.py is the reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace paceline {

constexpr int32_t SEPARATOR = -1;     // after a sequence that has ended
constexpr int64_t LONG = 4;           // tokens of a hash by which long matches are found; short ones by their last token
constexpr int64_t MAX_OCCURRENCES = 64;

struct Occurrence {
    int64_t position;  // of the last token that matches
    int64_t length;    // tokens that match
};

class TokenIndex {
  public:
    std::vector<int32_t> tokens;  // of all sequences

    void append(const int64_t *added, int64_t count) {
        reserve(tokens.size() + count);
        for (int64_t i = 0; i < count; i++) insert((int32_t)added[i]);
    }

    void end_sequence() {
        if (run_ == 0) return;
        reserve(tokens.size() + 1);
        insert(SEPARATOR);
        ends_.push_back((int64_t)tokens.size());
    }

    void clear() {
        tokens.clear(), ends_.clear();
        for (Links &links : links_) {
            links.previous.clear();
            std::fill(links.head.begin(), links.head.end(), 0u);
        }
        first_ = run_ = 0, oldest_ = 0;
    }

    // Forget the oldest sequences that have ended, until at most limit tokens are left, and of those that have ended at
    // most sequences (negative: any number).
    void keep(int64_t limit, int64_t sequences) {
        const auto beyond = [&] { return sequences >= 0 && (int64_t)(ends_.size() - oldest_) > sequences; };
        while (oldest_ < ends_.size() && (size() > limit || beyond())) first_ = ends_[oldest_++];
        if (first_ > (int64_t)tokens.size() / 2) compact();
    }

    int64_t size() const { return (int64_t)tokens.size() - first_; }

    int64_t bytes() const {
        int64_t total = 4 * (int64_t)tokens.capacity() + 8 * (int64_t)ends_.capacity();
        for (const Links &links : links_) total += 4 * (int64_t)(links.previous.capacity() + links.head.capacity());
        return total;
    }

    // The latest occurrences of the last tokens of context[0 .. count), of at most max_match and at least min_match of
    // them, at most limit, the latest first. Those of LONG tokens or more hide the shorter ones. skip_end leaves out the
    // end of the index.
    int64_t find(const int32_t *context, int64_t count, int64_t min_match, int64_t max_match, int64_t limit, bool skip_end,
                 Occurrence *found) const {
        int64_t num = 0;
        if (count >= LONG && max_match >= LONG)
            num = walk(1, context, count, std::max(min_match, LONG), max_match, limit, skip_end, found);
        if (num == 0 && min_match < LONG) num = walk(0, context, count, min_match, max_match, limit, skip_end, found);
        return num;
    }

    // The i-th token after an occurrence; a copy that reaches the end of a sequence that goes on starts over.
    int32_t following(const Occurrence &occurrence, int64_t i) const {
        const int64_t end = (int64_t)tokens.size(), start = occurrence.position + 1;
        if (start + i < end) return tokens[start + i];
        const int64_t period = end - start;
        return period > 0 && run_ > 0 ? tokens[start + i % period] : SEPARATOR;
    }

  private:
    struct Links {
        std::vector<uint32_t> previous;  // 1 + the position before with the same hash, 0 without one
        std::vector<uint32_t> head;      // by hash: 1 + the latest position
    };
    Links links_[2];              // by the last token, and by the last LONG tokens
    std::vector<int64_t> ends_;   // of ended sequences, behind their separators
    size_t oldest_ = 0;           // of ends_, that counts
    int64_t first_ = 0, run_ = 0;  // the earliest position that counts; tokens of the sequence that goes on

    static uint32_t mix(uint32_t hash, int32_t token) {
        hash = (hash ^ (uint32_t)token) * 0x9E3779B1u;
        return hash ^ (hash >> 15);
    }

    uint32_t hash(int which, const int32_t *last) const {
        uint32_t value = mix(0x811C9DC5u, last[0]);
        for (int64_t i = 1; which && i < LONG; i++) value = mix(value, last[-i]);
        return value & (uint32_t)(links_[which].head.size() - 1);
    }

    void link(int which, int64_t at) {
        uint32_t &head = links_[which].head[hash(which, &tokens[at])];
        links_[which].previous[at] = head;
        head = (uint32_t)(at + 1);
    }

    void insert(int32_t token) {
        const int64_t at = (int64_t)tokens.size();
        tokens.push_back(token);
        for (Links &links : links_) links.previous.push_back(0);
        run_ = token == SEPARATOR ? 0 : run_ + 1;
        if (run_ >= 1) link(0, at);
        if (run_ >= LONG) link(1, at);
    }

    // Grow the tables with the tokens, linking everything again.
    void reserve(size_t size) {
        if (size <= links_[0].head.size()) return;
        size_t entries = 1024;
        while (entries < size) entries *= 2;
        for (Links &links : links_) links.head.assign(entries, 0u);
        relink();
    }

    void relink() {
        int64_t run = 0;
        for (int64_t at = 0; at < (int64_t)tokens.size(); at++) {
            run = tokens[at] == SEPARATOR ? 0 : run + 1;
            if (run >= 1) link(0, at);
            if (run >= LONG) link(1, at);
        }
    }

    void compact() {
        tokens.erase(tokens.begin(), tokens.begin() + first_);
        ends_.erase(ends_.begin(), ends_.begin() + oldest_);
        for (int64_t &end : ends_) end -= first_;
        for (Links &links : links_) {
            links.previous.assign(tokens.size(), 0u);
            std::fill(links.head.begin(), links.head.end(), 0u);
        }
        first_ = 0, oldest_ = 0;
        relink();
    }

    int64_t walk(int which, const int32_t *context, int64_t count, int64_t min_match, int64_t max_match, int64_t limit,
                 bool skip_end, Occurrence *found) const {
        const Links &links = links_[which];
        if (links.head.empty() || count < 1) return 0;
        const int64_t end = skip_end ? (int64_t)tokens.size() - 1 : -1;
        const int32_t *last = context + count - 1;
        int64_t num = 0;
        for (uint32_t next = links.head[hash(which, last)]; next && num < limit;) {
            const int64_t at = (int64_t)next - 1;
            if (at < first_) break;
            next = links.previous[at];
            if (at == end) continue;
            const int64_t most = std::min({count, max_match, at - first_ + 1});
            int64_t length = 0;
            while (length < most && tokens[at - length] == last[-length] && tokens[at - length] != SEPARATOR) length++;
            if (length >= min_match) found[num++] = {at, length};
        }
        return num;
    }
};

}  // namespace paceline
