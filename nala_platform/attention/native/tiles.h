// What the passes do with one tile: read it, map it, add it to sums.
#pragma once

#include "products.h"
#include "spans.h"

struct Tiles {
    const Call& call;
    Widths width;
    explicit Tiles(const Call& call) : call(call), width(call) {}

    bool turns() const { return call.cos != nullptr; }
    const R* scored(const Mapped& tile) const { return turns() ? tile.rotated : tile.feature; }
    const Turn* turn(const Scratch& s) const { return turns() ? &s.turn : nullptr; }
    R low(long h) const { return static_cast<const R*>(call.low)[h]; }
    R high(long h) const { return static_cast<const R*>(call.high)[h]; }

    void read_turn(Scratch& s, long n, long rows) const {
        if (!turns()) return;
        read_table(static_cast<const R*>(call.cos) + n * width.size, rows, s.turn.cos);
        read_table(static_cast<const R*>(call.sin) + n * width.size, rows, s.turn.sin);
        Vec alternate;
        for (long lane = 0; lane < W; lane++) alternate[lane] = R(lane % 2 ? 1 : -1);
        for (R* sin = s.turn.sin; sin < s.turn.sin + rows * width.head; sin += W) store(sin, load(sin) * alternate);
    }

    void read_table(const R* table, long rows, R* to) const {
        for (long i = 0; i < rows; i++, table += width.size, to += width.head) {
            for (long d = 0; d < width.size; d++) to[d] = table[d];
            for (long d = width.size; d < width.head; d++) to[d] = 0;
        }
    }

    void map_query(Scratch& s, long b, long h, long n, long rows) const {
        read(call.query, b, h, n, rows, width.size, s.query.x, width.head, nullptr);
        map_queries(s.query, rows, low(h), high(h), R(call.gate_slope), turn(s), width);
    }

    // Keys and values, with zeros where they are masked.
    void map_key(Scratch& s, long b, long h, long n, long rows) const {
        const uint8_t* mask = call.mask == nullptr ? nullptr : call.mask + b * call.keys + n;
        read(call.key, b, h, n, rows, width.size, s.key.x, width.head, mask);
        read(call.value, b, h, n, rows, width.values, s.value, width.columns, mask);
        map_keys(s.key, rows, R(call.key_power), turn(s), width);
    }

    void read_grad(Scratch& s, long b, long h, long n, long rows) const {
        read(call.out, b, h, n, rows, width.values, s.grad, width.columns, nullptr);
    }

    // S += scored^T y, z += sum_i factor_i feature_i
    void add(R* state, const Mapped& tile, const R* y, const R* factor, long rows) const {
        accumulate(rows, scored(tile), width.features, y, width.columns, state);
        add_rows(z_of(state), tile.feature, factor, rows);
    }

    void add_rows(R* z, const R* rows_of, const R* factor, long rows) const {
        for (long d = 0; d < width.features; d += W) {
            Vec sum = load(z + d);
            for (long i = 0; i < rows; i++) {
                const Vec x = load(rows_of + i * width.features + d);
                sum += factor == nullptr ? x : factor[i] * x;
            }
            store(z + d, sum);
        }
    }

    R dot(const R* x, const R* y) const {
        Vec sum{};
        for (long d = 0; d < width.features; d += W) sum += load(x + d) * load(y + d);
        return total(sum);
    }

    // 1 / D; eps may be so small that D is a number whose reciprocal is infinite, and 0 times it is to be 0.
    static R reciprocal(R denominator) { return 1 / (denominator < TINY ? TINY : denominator); }

    // to += factor from
    void add_row(R* to, const R* from, R factor, long size) const {
        for (long d = 0; d < size; d += W) store(to + d, load(to + d) + factor * load(from + d));
    }

    void scale(R* row, R factor, long size) const {
        for (long d = 0; d < size; d += W) store(row + d, load(row + d) * factor);
    }

    long head_index(long b, long h) const { return b * call.heads + h; }

    // From the gradients of the features to those of the inputs.
    void put_query_grad(Scratch& s, const Unit& unit, long h, long n, long rows, R* ends) const {
        query_gradients(s.query, rows, low(h), high(h), R(call.gate_slope), s.query_features, width, ends[0], ends[1]);
        write(call.query_grad, unit.b, h, n, rows, width.size, s.query.x, width.head, true);
    }
    void put_key_grad(Scratch& s, const Unit& unit, long h, long n, long rows) const {
        key_gradients(s.key, rows, R(call.key_power), s.key_features, width);
        write(call.key_grad, unit.b, h, n, rows, width.size, s.key.x, width.head, true);
    }

    // A state is S (features, columns), then z (features,).
    R* z_of(R* state) const { return state + width.features * width.columns; }
    const R* z_of(const R* state) const { return state + width.features * width.columns; }

    // A unit's own copy of a head's state; S transposed.
    R* state_of(const Scratch& s, const Unit& unit, long h) const {
        return s.states + (h - unit.first_head) * width.state;
    }
    R* turned_of(const Scratch& s, const Unit& unit, long h) const {
        return s.states_turned + (h - unit.first_head) * width.columns * width.features;
    }

    // state -> its S transposed; null is a state of zeros
    void turn_state(const R* state, R* to) const {
        if (state == nullptr) std::fill_n(to, width.columns * width.features, R(0));
        else transpose(width.features, width.columns, state, width.columns, to, width.features);
    }

    template <class Work> static void each_head(const Unit& unit, Work work) {
        for (long h = unit.first_head; h < unit.last_head; h++) work(h);
    }

    template <class Work> void each_tile(const Unit& unit, const Spans& spans, Scratch& s, Work work) const {
        for (long n = spans.first(unit.span); n < spans.last(unit.span); n += TILE) {
            const long rows = std::min(TILE, spans.last(unit.span) - n);
            read_turn(s, n, rows);
            each_head(unit, [&](long h) { work(h, n, rows); });
        }
    }

    // What a unit of queries sends to the ends of the range of exponents; then the sums over units.
    R* ends_of(R* ends, long b, long h, long span, long spans) const {
        return ends + (head_index(b, h) * spans + span) * 2;
    }

    void add_ends(R* ends, long spans) const {
        R* grads = static_cast<R*>(call.bound_grads);
        for (long h = 0; h < call.heads; h++)
            for (long end = 0; end < 2; end++) {
                R sum = 0;
                for (long b = 0; b < call.batch; b++)
                    for (long span = 0; span < spans; span++) sum += ends_of(ends, b, h, span, spans)[end];
                grads[end * call.heads + h] = sum;
            }
    }
};
