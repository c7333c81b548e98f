// Each query sees the keys up to its own: sums go on from tile to tile, and within one the scores are a triangle.
//
// Backward: with the counts c_i, D_i = phi_q_i . z_i + eps c_i, g_i the gradient of the output over D_i and e_i as in
// `both_ways`, queries take from what is before them and keys from what is behind:
//     dphi_q_i = R_i^T sum_{j <= i} (g_i . v_j) R_j phi_k_j + e_i z_i
//     dphi_k_j = R_j^T sum_{i >= j} (g_i . v_j) R_i phi_q_i + sum_{i >= j} e_i phi_q_i
//     dv_j = sum_{i >= j} (R_i phi_q_i . R_j phi_k_j) g_i
#pragma once

#include "tiles.h"

class Causal : Tiles {
  public:
    explicit Causal(const Call& call) : Tiles(call), spans(call, call.queries) {}

    void forward() {
        sum_spans();
        share(call, spans, [&](const Unit& unit, Scratch& s) {
            each_head(unit, [&](long h) {
                R* sums = state_of(s, unit, h);
                unit.span == 0 ? start(sums, unit.b, h) : begin(sums, before(unit.b, h, unit.span));
            });
            each_tile(unit, spans, s, [&](long h, long n, long rows) { out_tile(s, unit, h, n, rows); });
            if (unit.span == spans.count - 1) each_head(unit, [&](long h) { end(state_of(s, unit, h), unit.b, h); });
        });
    }

    void backward() {
        const long heads = call.batch * call.heads;
        Buffer grads(heads * (spans.count - 1) * width.state), ends(heads * spans.count * 2);
        Buffer per_query(heads * call.queries * 2);
        share(call, spans, [&](const Unit& unit, Scratch& s) {
            each_head(unit, [&](long h) {
                const R* from = before(unit.b, h, unit.span);
                turn_state(from, turned_of(s, unit, h));
                begin(state_of(s, unit, h), from);
                R* own = behind(grads.data, unit.b, h, unit.span - 1);
                if (own != nullptr) std::fill_n(own, width.state, R(0));
                std::fill_n(ends_of(ends.data, unit.b, h, unit.span, spans.count), 2, R(0));
            });
            each_tile(unit, spans, s, [&](long h, long n, long rows) {
                R* own = ends_of(ends.data, unit.b, h, unit.span, spans.count);
                R* grad_sums = behind(grads.data, unit.b, h, unit.span - 1);
                query_tile(s, unit, h, n, rows, grad_sums, own, of_query(per_query.data, unit.b, h, n));
            });
        });
        for (long head = 0; head < heads; head++)
            for (long span = spans.count - 3; span >= 0; span--)
                add_row(state(grads.data, head, span), state(grads.data, head, span + 1), R(1), width.state);
        add_ends(ends.data, spans.count);
        share(call, spans, [&](const Unit& unit, Scratch& s) {
            each_head(unit, [&](long h) {
                const R* from = behind(grads.data, unit.b, h, unit.span);
                turn_state(from, turned_of(s, unit, h));
                begin(state_of(s, unit, h), from);
            });
            each_tile_back(unit, s, [&](long h, long n, long rows) {
                key_tile(s, unit, h, n, rows, of_query(per_query.data, unit.b, h, n));
            });
        });
    }

  private:
    const Spans spans;

    R* state(R* all, long head, long place) const { return all + (head * (spans.count - 1) + place) * width.state; }
    // What other backends call a state, (2D, E) and (2D,), to and from ours: padded, and with the second half of the
    // split negative.
    void start(R* to, long b, long h) const {
        begin(to, nullptr);
        if (call.start_sums == nullptr) return;
        const R *sums = static_cast<const R*>(call.start_sums), *keys = static_cast<const R*>(call.start_keys);
        each_feature(b, h, [&](long ours, long theirs, R sign) {
            scaled(sums + theirs * width.values, sign, width.values, to + ours * width.columns);
            z_of(to)[ours] = sign * keys[theirs];
        });
    }
    void end(const R* from, long b, long h) const {
        if (call.end_sums == nullptr) return;
        R *sums = static_cast<R*>(call.end_sums), *keys = static_cast<R*>(call.end_keys);
        each_feature(b, h, [&](long ours, long theirs, R sign) {
            scaled(from + ours * width.columns, sign, width.values, sums + theirs * width.values);
            keys[theirs] = sign * z_of(from)[ours];
        });
    }
    static void scaled(const R* __restrict from, R factor, long size, R* __restrict to) {
        for (long i = 0; i < size; i++) to[i] = factor * from[i];
    }
    template <class Work> void each_feature(long b, long h, Work work) const {
        for (long half = 0; half < 2; half++) {
            const R sign = half && !IS_COSINE ? -1 : 1;
            const long theirs = (head_index(b, h) * 2 + half) * width.size;
            for (long d = 0; d < width.size; d++) work(half * width.head + d, theirs + d, sign);
        }
    }

    // The sums before a span, null before the first, and the gradients of those behind it, null behind the last: 0.
    R* before(long b, long h, long span) const {
        return span == 0 ? nullptr : state(static_cast<R*>(call.states), head_index(b, h), span - 1);
    }
    R* behind(R* grads, long b, long h, long span) const {
        return span < 0 || span == spans.count - 1 ? nullptr : state(grads, head_index(b, h), span);
    }
    void begin(R* to, const R* from) const {
        if (from == nullptr) std::fill_n(to, width.state, R(0));
        else std::copy_n(from, width.state, to);
    }
    R count(long b, long n) const { return static_cast<const R*>(call.counts)[b * call.queries + n]; }
    // 1 / D_i and e_i
    R* of_query(R* per_query, long b, long h, long n) const {
        return per_query + (head_index(b, h) * call.queries + n) * 2;
    }

    template <class Work> void each_tile_back(const Unit& unit, Scratch& s, Work work) const {
        const long first = spans.first(unit.span), last = spans.last(unit.span);
        for (long n = first + (last - first - 1) / TILE * TILE; n >= first; n -= TILE) {
            const long rows = std::min(TILE, last - n);
            read_turn(s, n, rows);
            each_head(unit, [&](long h) { work(h, n, rows); });
        }
    }

    // `Call.states`, from the keys.
    void sum_spans() const {
        if (spans.count == 1) return;
        share(call, spans, [&](const Unit& unit, Scratch& s) {
            if (unit.span == spans.count - 1) return;
            each_head(unit, [&](long h) {
                R* sums = before(unit.b, h, unit.span + 1);
                unit.span == 0 ? start(sums, unit.b, h) : begin(sums, nullptr);
            });
            each_tile(unit, spans, s, [&](long h, long n, long rows) {
                map_key(s, unit.b, h, n, rows);
                add(before(unit.b, h, unit.span + 1), s.key, s.value, nullptr, rows);
            });
        });
        for (long b = 0; b < call.batch; b++)
            for (long h = 0; h < call.heads; h++)
                for (long span = 2; span < spans.count; span++)
                    add_row(before(b, h, span), before(b, h, span - 1), R(1), width.state);
    }

    // (rows, TILE) = the lower triangle of A B^T, 0 above it; B^T is (terms, TILE).
    static constexpr long STEP = 16;
    void triangle(const R* a, long terms, long a_row, const R* b_turned, long rows, R* out) const {
        for (long i = 0; i < rows; i += STEP) {
            const long height = std::min(STEP, rows - i), length = up(i + height, W) * W;
            product(height, length, {a + i * a_row, a_row, 1}, terms, b_turned, TILE, out + i * TILE, TILE, false);
            for (long k = i; k < i + height; k++) std::fill(out + k * TILE + k + 1, out + (k + 1) * TILE, R(0));
        }
    }

    // out += L X, or L^T X, for a lower triangle L
    void add_triangle(const R* l, const R* x, long size, long rows, R* out, bool is_transposed) const {
        for (long i = 0; i < rows; i += STEP) {
            const long height = std::min(STEP, rows - i), first = is_transposed ? i : 0;
            const Left left = is_transposed ? Left{l + i * TILE + i, 1, TILE} : Left{l + i * TILE, TILE, 1};
            const long terms = is_transposed ? rows - i : i + height;
            product(height, size, left, terms, x + first * size, size, out + i * size, size, true);
        }
    }

    void both_maps(Scratch& s, const Unit& unit, long h, long n, long rows) const {
        map_query(s, unit.b, h, n, rows);
        map_key(s, unit.b, h, n, rows);
    }

    void score(Scratch& s, long rows) const {
        transpose(rows, width.features, scored(s.key), width.features, s.keys_turned, TILE);
        triangle(scored(s.query), width.features, width.features, s.keys_turned, rows, s.scores);
    }

    void score_grads(Scratch& s, long rows) const {
        transpose(rows, width.columns, s.value, width.columns, s.values_turned, TILE);
        triangle(s.grad, width.values, width.columns, s.values_turned, rows, s.score_grads);
    }

    // D_i, once z has the keys up to i.
    R denominator(const Scratch& s, long b, long n, long i, const R* z) const {
        return dot(s.query.feature + i * width.features, z) + R(call.eps) * count(b, n + i);
    }

    void out_tile(Scratch& s, const Unit& unit, long h, long n, long rows) const {
        R *sums = state_of(s, unit, h), *z = z_of(sums);
        both_maps(s, unit, h, n, rows);
        score(s, rows);
        multiply(rows, scored(s.query), width.features, width.features, sums, width.columns, s.out);
        add_triangle(s.scores, s.value, width.columns, rows, s.out, false);
        for (long i = 0; i < rows; i++) {
            add_row(z, s.key.feature + i * width.features, R(1), width.features);
            scale(s.out + i * width.columns, reciprocal(denominator(s, unit.b, n, i, z)), width.columns);
        }
        write(call.out, unit.b, h, n, rows, width.values, s.out, width.columns, false);
        accumulate(rows, scored(s.key), width.features, s.value, width.columns, sums);
    }

    // Gradients of queries; `per_query` gets 1 / D_i and e_i, `grad_sums` what comes to the sums before the span.
    void query_tile(
        Scratch& s, const Unit& unit, long h, long n, long rows, R* grad_sums, R* ends, R* per_query) const {
        R *sums_turned = turned_of(s, unit, h), *z = z_of(state_of(s, unit, h)), *grads = s.query_features;
        R e[TILE];
        both_maps(s, unit, h, n, rows);
        read_grad(s, unit.b, h, n, rows);
        std::copy_n(z, width.features, s.row);
        for (long i = 0; i < rows; i++) {
            add_row(s.row, s.key.feature + i * width.features, R(1), width.features);
            per_query[2 * i] = reciprocal(denominator(s, unit.b, n, i, s.row));
            scale(s.grad + i * width.columns, per_query[2 * i], width.columns);
        }
        score_grads(s, rows);
        multiply(rows, s.grad, width.columns, width.values, sums_turned, width.features, grads);
        add_triangle(s.score_grads, scored(s.key), width.features, rows, grads, false);
        for (long i = 0; i < rows; i++) {
            e[i] = -dot(scored(s.query) + i * width.features, grads + i * width.features) * per_query[2 * i];
            per_query[2 * i + 1] = e[i];
        }
        if (grad_sums != nullptr) add(grad_sums, s.query, s.grad, e, rows);
        if (turns()) turn_back(grads, rows, s.turn, width);
        for (long i = 0; i < rows; i++) {
            add_row(z, s.key.feature + i * width.features, R(1), width.features);
            add_row(grads + i * width.features, z, e[i], width.features);
        }
        put_query_grad(s, unit, h, n, rows, ends);
        accumulate(rows, s.value, width.columns, scored(s.key), width.features, sums_turned);
    }

    // Gradients of keys and values, from the last tile of a span to the first.
    void key_tile(Scratch& s, const Unit& unit, long h, long n, long rows, const R* per_query) const {
        R *sums = state_of(s, unit, h), *sums_turned = turned_of(s, unit, h), *z = z_of(sums), *grads = s.key_features;
        both_maps(s, unit, h, n, rows);
        read_grad(s, unit.b, h, n, rows);
        for (long i = 0; i < rows; i++) scale(s.grad + i * width.columns, per_query[2 * i], width.columns);
        score(s, rows);
        score_grads(s, rows);
        multiply(rows, scored(s.key), width.features, width.features, sums, width.columns, s.out);
        add_triangle(s.scores, s.grad, width.columns, rows, s.out, true);
        write(call.value_grad, unit.b, h, n, rows, width.values, s.out, width.columns, false);
        multiply(rows, s.value, width.columns, width.values, sums_turned, width.features, grads);
        add_triangle(s.score_grads, scored(s.query), width.features, rows, grads, true);
        if (turns()) turn_back(grads, rows, s.turn, width);
        for (long i = rows - 1; i >= 0; i--) {
            add_row(z, s.query.feature + i * width.features, per_query[2 * i + 1], width.features);
            add_row(grads + i * width.features, z, R(1), width.features);
        }
        accumulate(rows, scored(s.query), width.features, s.grad, width.columns, sums);
        accumulate(rows, s.grad, width.columns, scored(s.query), width.features, sums_turned);
        put_key_grad(s, unit, h, n, rows);
    }
};
