// Every query sees all keys: sums over the keys, then what each query reads of their means.
//
// The gradients are those of `blocks/both_ways.py`: queries take from the means and add to their gradients, of which
// keys and values take theirs.
#pragma once

#include "tiles.h"

class BothWays : Tiles {
  public:
    explicit BothWays(const Call& call) : Tiles(call) {}

    void forward() {
        const Spans spans(call, call.keys);
        Buffer own(parts_beside(spans));
        R* parts = spans.count > 1 ? own.data : means();  // one part is the whole
        share(call, spans, [&](const Unit& unit, Scratch& s) {
            clear(parts, unit, spans);
            each_tile(unit, spans, s, [&](long h, long n, long rows) {
                map_key(s, unit.b, h, n, rows);
                add(part(parts, unit.b, h, unit.span, spans), s.key, s.value, nullptr, rows);
            });
        });
        to_means(parts, spans, means());

        const Spans reading(call, call.queries);
        share(call, reading, [&](const Unit& unit, Scratch& s) {
            each_tile(unit, reading, s, [&](long h, long n, long rows) { out_tile(s, unit, h, n, rows); });
        });
    }

    void backward() {
        const Spans spans(call, call.queries);
        const long heads = call.batch * call.heads;
        Buffer own(parts_beside(spans)), grads(heads * width.state), ends(heads * spans.count * 2);
        R* parts = spans.count > 1 ? own.data : grads.data;
        share(call, spans, [&](const Unit& unit, Scratch& s) {
            clear(parts, unit, spans);
            each_head(unit, [&](long h) {
                turn_state(mean(unit.b, h), turned_of(s, unit, h));
                std::fill_n(ends_of(ends.data, unit.b, h, unit.span, spans.count), 2, R(0));
            });
            each_tile(unit, spans, s, [&](long h, long n, long rows) {
                query_tile(s, unit, h, n, rows, part(parts, unit.b, h, unit.span, spans),
                           ends_of(ends.data, unit.b, h, unit.span, spans.count));
            });
        });
        to_means(parts, spans, grads.data);
        add_ends(ends.data, spans.count);

        const Spans keys(call, call.keys);
        share(call, keys, [&](const Unit& unit, Scratch& s) {
            each_head(unit, [&](long h) { turn_state(of_head(grads.data, unit.b, h), turned_of(s, unit, h)); });
            each_tile(unit, keys, s, [&](long h, long n, long rows) {
                key_tile(s, unit, h, n, rows, of_head(grads.data, unit.b, h));
            });
        });
    }

  private:
    R* means() const { return static_cast<R*>(call.states); }
    R* of_head(R* states, long b, long h) const { return states + head_index(b, h) * width.state; }
    const R* mean(long b, long h) const { return of_head(means(), b, h); }

    // The sums of one span.
    R* part(R* parts, long b, long h, long span, const Spans& spans) const {
        return parts + (head_index(b, h) * spans.count + span) * width.state;
    }
    long parts_beside(const Spans& spans) const {
        return spans.count > 1 ? call.batch * call.heads * spans.count * width.state : 0;
    }
    void clear(R* parts, const Unit& unit, const Spans& spans) const {
        each_head(unit, [&](long h) { std::fill_n(part(parts, unit.b, h, unit.span, spans), width.state, R(0)); });
    }

    // The parts of all spans, added in order and divided by the number of keys.
    void to_means(const R* parts, const Spans& spans, R* to) const {
        for (long head = 0; head < call.batch * call.heads; head++, to += width.state) {
            const R* from = parts + head * spans.count * width.state;
            const R share = 1 / static_cast<const R*>(call.counts)[head / call.heads];
            for (long x = 0; x < width.state; x += W) {
                Vec sum{};
                for (long span = 0; span < spans.count; span++) sum += load(from + span * width.state + x);
                store(to + x, sum * share);
            }
        }
    }

    R denominator(const Scratch& s, long i, const R* mean) const {
        return dot(s.query.feature + i * width.features, z_of(mean)) + R(call.eps);
    }

    void out_tile(Scratch& s, const Unit& unit, long h, long n, long rows) const {
        const R* state = mean(unit.b, h);
        map_query(s, unit.b, h, n, rows);
        multiply(rows, scored(s.query), width.features, width.features, state, width.columns, s.out);
        for (long i = 0; i < rows; i++)
            scale(s.out + i * width.columns, reciprocal(denominator(s, i, state)), width.columns);
        write(call.out, unit.b, h, n, rows, width.values, s.out, width.columns, false);
    }

    void query_tile(Scratch& s, const Unit& unit, long h, long n, long rows, R* grad_sums, R* ends) const {
        const R* state = mean(unit.b, h);
        R e[TILE], share[TILE];
        map_query(s, unit.b, h, n, rows);
        read_grad(s, unit.b, h, n, rows);
        for (long i = 0; i < rows; i++) {
            share[i] = reciprocal(denominator(s, i, state));
            scale(s.grad + i * width.columns, share[i], width.columns);
        }
        R* grads = s.query_features;
        multiply(rows, s.grad, width.columns, width.values, turned_of(s, unit, h), width.features, grads);
        for (long i = 0; i < rows; i++)
            e[i] = -dot(scored(s.query) + i * width.features, grads + i * width.features) * share[i];
        add(grad_sums, s.query, s.grad, e, rows);
        if (turns()) turn_back(grads, rows, s.turn, width);
        for (long i = 0; i < rows; i++) add_row(grads + i * width.features, z_of(state), e[i], width.features);
        put_query_grad(s, unit, h, n, rows, ends);
    }

    void key_tile(Scratch& s, const Unit& unit, long h, long n, long rows, const R* grad) const {
        map_key(s, unit.b, h, n, rows);
        multiply(rows, scored(s.key), width.features, width.features, grad, width.columns, s.out);
        write(call.value_grad, unit.b, h, n, rows, width.values, s.out, width.columns, false);
        R* grads = s.key_features;
        multiply(rows, s.value, width.columns, width.values, turned_of(s, unit, h), width.features, grads);
        if (turns()) turn_back(grads, rows, s.turn, width);
        for (long i = 0; i < rows; i++) add_row(grads + i * width.features, z_of(grad), R(1), width.features);
        put_key_grad(s, unit, h, n, rows);
    }
};
