// How the work of one call is shared out: units that threads take one after the other, and the memory of a thread.
//
// A unit is a span of the tokens of some heads of one sample. Spans depend on the sizes alone and their sums are added
// in order, so that a result does not depend on the number of threads, nor on which thread took what. The heads of a
// unit are computed one by one, and share but the rotation.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "maps.h"

constexpr long STATES_BYTES = 1 << 19;  // of the heads that a unit takes together: they stay in a second-level cache
constexpr long UNITS_OF_THREAD = 4;     // at least, where there are so many heads: threads end at about the same time
constexpr double WORTH_A_THREAD = 2e6;  // multiplications: about 20 us, what starting a thread takes

inline long up(long x, long by) { return (x + by - 1) / by; }

struct Spans {
    long tokens, length, count, heads_together, groups;
    Spans(const Call& call, long tokens) : tokens(tokens) {
        const Widths width(call);
        length = call.span;
        count = up(tokens, length);
        const long cached = std::max<long>(1, STATES_BYTES / (width.state * long(sizeof(R))));
        const long wanted = up(UNITS_OF_THREAD * call.threads, call.batch * count);
        heads_together = std::max<long>(1, std::min(cached, long(call.heads) / wanted));
        groups = up(call.heads, heads_together);
    }
    // The tokens of span s.
    long first(long s) const { return s * length; }
    long last(long s) const { return std::min(tokens, (s + 1) * length); }
};

struct Unit {
    long b, span, first_head, last_head;
    Unit(const Call& call, const Spans& spans, long number)
        : b(number / spans.groups / spans.count),
          span(number / spans.groups % spans.count),
          first_head(number % spans.groups * spans.heads_together),
          last_head(std::min<long>(call.heads, first_head + spans.heads_together)) {}
};

// Memory that one thread's tiles lie in; it is never zeroed, and a page that nobody touches costs nothing.
class Scratch {
  public:
    Scratch(const Widths& width, long heads) {
        const long head = TILE * width.head, features = TILE * width.features, columns = TILE * width.columns;
        const long square = TILE * TILE, turned = width.columns * width.features;
        const long sizes[] = {head, head, head, head, features, features, head, head, head, head, features, features,
                              features, features, columns, columns, columns, square, square, features, columns,
                              head, head, heads * width.state, heads * turned, 2 * width.features};
        long numbers = 0;
        for (long size : sizes) numbers += up(size, 16) * 16;
        const size_t bytes = size_t(numbers) * sizeof(R) + 64;
        thread_local std::unique_ptr<char[]> kept;  // a caller's thread calls again
        thread_local size_t kept_bytes = 0;
        if (kept_bytes < bytes) {
            kept.reset();
            kept_bytes = 0;
            kept.reset(new char[bytes]);
            kept_bytes = bytes;
        }
        next = reinterpret_cast<R*>((reinterpret_cast<uintptr_t>(kept.get()) + 63) / 64 * 64);
        for (Mapped* side : {&query, &key}) {
            side->x = take(head), side->log = take(head), side->slope = take(head), side->tanh = take(head);
            side->feature = take(features), side->rotated = take(features);
        }
        query_features = take(features), key_features = take(features);
        value = take(columns), grad = take(columns), out = take(columns);
        scores = take(square), score_grads = take(square);
        keys_turned = take(features), values_turned = take(columns);
        turn.cos = take(head), turn.sin = take(head);
        states = take(heads * width.state), states_turned = take(heads * turned);
        row = take(2 * width.features);
    }

    Mapped query, key;
    R *query_features, *key_features;  // gradients of features, (TILE, features)
    R *value, *grad, *out;             // (TILE, columns)
    R *scores, *score_grads;           // (TILE, TILE)
    R *keys_turned, *values_turned;    // (features, TILE), (columns, TILE): transposed
    Turn turn;
    R *states, *states_turned;  // of each head of the unit: (features, columns) and (features,); (columns, features)
    R* row;

  private:
    R* take(long numbers) {
        R* here = next;
        next += up(numbers, 16) * 16;
        return here;
    }
    R* next;
};

// work(unit, scratch) for all units, on as many threads as are asked for, can be started and have something to do.
template <class Work> void share(const Call& call, const Spans& spans, Work work) {
    const Widths width(call);
    const long units = call.batch * spans.groups * spans.count;
    const double products = double(call.batch * call.heads * spans.tokens) * width.features * width.columns;
    const long worth = std::max<long>(1, long(products / WORTH_A_THREAD));
    const long threads = std::min({long(call.threads), units, worth});
    std::atomic<long> next{0};
    std::atomic<bool> is_out_of_memory{false};
    auto run = [&] {
        try {
            Scratch scratch(width, spans.heads_together);
            for (long number; (number = next++) < units;) work(Unit(call, spans, number), scratch);
        } catch (const std::bad_alloc&) {
            is_out_of_memory = true;
        }
    };
    std::vector<std::thread> others;
    others.reserve(threads);
    bool are_more = true;
    while (are_more && long(others.size()) + 1 < threads) {
        try {
            others.emplace_back(run);
        } catch (...) {
            are_more = false;  // the system has no more threads, or memory for them: those that there are do all
        }
    }
    run();
    for (std::thread& other : others) other.join();
    if (is_out_of_memory) throw std::bad_alloc();
}

// Numbers that a call needs beside its results; aligned, not zeroed.
class Buffer {
  public:
    explicit Buffer(long numbers) : memory(new char[size_t(numbers) * sizeof(R) + 64]) {
        data = reinterpret_cast<R*>((reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64);
    }
    R* data;

  private:
    std::unique_ptr<char[]> memory;
};
