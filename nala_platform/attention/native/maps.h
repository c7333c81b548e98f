// The feature maps and their gradients, for a tile of tokens; the formulas are those of `blocks/closed_form.py`.
//
// t = x e with e = |x|^(a-1) / n^a for a query and |x|^(p-1) for a key; features [max(t, 0) ; min(t, 0)] or
// [|t| cos theta ; |t| sin theta]. With g the gradient of the features, w = g . df/dlog|t| is t or |t| times what
// `direct` returns, so w / x is a product with e, and nothing is divided by x.
#pragma once

#include "call.h"

constexpr long TILE = 64;  // tokens: the features of a tile and a state of the usual head stay in a second-level cache
constexpr double NORM_EPS = 1e-24, SHARPNESS = 20.0, WIDEST_ANGLE = 0.785398163397448309615660845819875721;

// Widths of a head, padded to vectors. A feature is one of two halves, each as wide as the padded head.
struct Widths {
    long size, values, head, features, columns, state;
    explicit Widths(const Call& call) : size(call.size), values(call.values) {
        head = (size + W - 1) / W * W;
        columns = (values + W - 1) / W * W;
        features = 2 * head;
        state = features * (columns + 1);
    }
};

// What one tile of queries or of keys is mapped to; per token its norm and, of queries, log2 norm, 1 - gate, exponent.
struct Mapped {
    R *x, *log, *slope, *tanh, *feature, *rotated;
    alignas(BYTES) R norm[TILE], log_norm[TILE], ungated[TILE], exponent[TILE];
};

struct Turn {
    R *cos, *sin;  // (TILE, head); sin with the sign of its place in the pair
};

inline void norms(Mapped& tile, long rows, const Widths& width) {
    for (long i = 0; i < rows; i++) {
        Vec sum{};
        for (long d = 0; d < width.head; d += W) {
            const Vec x = load(tile.x + i * width.head + d);
            sum += x * x;
        }
        tile.norm[i] = std::sqrt(total(sum) + R(NORM_EPS));
    }
    for (long i = rows; i < TILE; i++) tile.norm[i] = 1;
}

// From t and e to features, and to the turned ones if there is a turn.
inline void spread(Mapped& tile, long i, long d, Vec x, Vec t, const Turn* turn, const Widths& width) {
    Vec first, second;
    if constexpr (IS_COSINE) {
        const Vec th = tanh_of(x * (R(SHARPNESS) / tile.norm[i]));
        store(tile.tanh + i * width.head + d, th);
        const Angle angle = angle_of(th * R(WIDEST_ANGLE));
        first = magnitude(t) * angle.cos;
        second = magnitude(t) * angle.sin;
    } else {  // NaN is in both
        first = t < R(0) ? Vec{} : t;
        second = t > R(0) ? Vec{} : t;
    }
    const long place = i * width.features + d;
    store(tile.feature + place, first);
    store(tile.feature + place + width.head, second);
    if (turn != nullptr) {
        const Vec cos = load(turn->cos + i * width.head + d), sin = load(turn->sin + i * width.head + d);
        store(tile.rotated + place, first * cos + partners(first) * sin);
        store(tile.rotated + place + width.head, second * cos + partners(second) * sin);
    }
}

inline void map_queries(Mapped& tile, long rows, R low, R high, R slope, const Turn* turn, const Widths& width) {
    norms(tile, rows, width);
    for (long i = 0; i < TILE; i += W) {
        const Vec norm = load(tile.norm + i), ungated = beside_tanh(norm * slope);
        store(tile.ungated + i, ungated);
        store(tile.exponent + i, high - (high - low) * ungated);
        store(tile.log_norm + i, log2_of(norm));
    }
    for (long i = 0; i < rows; i++) {
        const R power = tile.exponent[i] - 1, shift = tile.exponent[i] * tile.log_norm[i];
        for (long d = 0; d < width.head; d += W) {
            const long place = i * width.head + d;
            const Vec x = load(tile.x + place), size = magnitude(x);
            const Vec log = log2_of(size < TINY ? all(TINY) : size);
            const Vec e = exp2_of(power * log - shift);
            store(tile.log + place, log);
            store(tile.slope + place, e);
            spread(tile, i, d, x, x * e, turn, width);
        }
    }
}

inline void map_keys(Mapped& tile, long rows, R power, const Turn* turn, const Widths& width) {
    if (IS_COSINE) norms(tile, rows, width);
    for (long i = 0; i < rows; i++)
        for (long d = 0; d < width.head; d += W) {
            const long place = i * width.head + d;
            const Vec x = load(tile.x + place), size = magnitude(x);
            Vec e;
            if (power == R(3)) e = x * x;
            else if (power == R(2)) e = size;
            else if (power == R(1)) e = all(1);
            else e = exp2_of((power - 1) * log2_of(size < TINY ? all(TINY) : size));
            store(tile.slope + place, e);
            spread(tile, i, d, x, x * e, turn, width);
        }
}

// The gradient of unturned features from that of turned ones, in place: the opposite turn.
inline void turn_back(R* grad, long rows, const Turn& turn, const Widths& width) {
    for (long i = 0; i < rows; i++)
        for (long d = 0; d < width.head; d += W) {
            const Vec cos = load(turn.cos + i * width.head + d), sin = load(turn.sin + i * width.head + d);
            for (R* place : {grad + i * width.features + d, grad + i * width.features + width.head + d}) {
                const Vec g = load(place);
                store(place, g * cos - partners(g) * sin);
            }
        }
}

// What becomes of the gradients (g1, g2) of a component's two features.
struct Direct {
    Vec by_x;     // w / x, without the exponent
    Vec angular;  // r (cosine alone)
};

inline Direct direct(const Mapped& tile, long i, long d, const R* grad, const Widths& width) {
    const long place = i * width.features + d;
    const Vec x = load(tile.x + i * width.head + d), e = load(tile.slope + i * width.head + d);
    const Vec g1 = load(grad + place), g2 = load(grad + place + width.head);
    if constexpr (!IS_COSINE) {
        const Vec chosen = x > R(0) ? g1 : g2;
        return {x == R(0) ? Vec{} : e * chosen, Vec{}};
    } else {
        const Vec f1 = load(tile.feature + place), f2 = load(tile.feature + place + width.head);
        const Vec th = load(tile.tanh + i * width.head + d);
        const Angle angle = angle_of(th * R(WIDEST_ANGLE));
        const Vec size = e * (g1 * angle.cos + g2 * angle.sin);
        const Vec signed_size = x < R(0) ? -size : size;
        const Vec angular = (g2 * f1 - g1 * f2) * (R(WIDEST_ANGLE) * (R(1) - th * th));
        return {x == R(0) ? Vec{} : signed_size, angular};
    }
}

// dL/dx of a tile of queries in place of x; `by_low` and `by_high` get what comes to the ends of the range.
inline void query_gradients(
    Mapped& tile, long rows, R low, R high, R slope, const R* grad, const Widths& width, R& by_low, R& by_high) {
    for (long i = 0; i < rows; i++) {
        Vec sum{}, with_log{}, turned{};
        for (long d = 0; d < width.head; d += W) {
            const long place = i * width.head + d;
            const Direct part = direct(tile, i, d, grad, width);
            const Vec x = load(tile.x + place), w = part.by_x * x;
            sum += w;
            with_log += w * load(tile.log + place);
            if (IS_COSINE) turned += part.angular * x;
        }
        const R norm = tile.norm[i], ungated = tile.ungated[i], a = tile.exponent[i], w = total(sum);
        const R by_exponent = R(LN2) * (total(with_log) - tile.log_norm[i] * w);
        by_low += by_exponent * ungated;
        by_high += by_exponent * (1 - ungated);
        R radial = ((high - low) * slope * ungated * (2 - ungated) * by_exponent - a * w / norm) / norm;
        const R sharp = R(SHARPNESS) / norm;
        if (IS_COSINE) radial -= total(turned) * sharp / (norm * norm);
        for (long d = 0; d < width.head; d += W) {
            const long place = i * width.head + d;
            const Direct part = direct(tile, i, d, grad, width);
            Vec by_x = a * part.by_x + radial * load(tile.x + place);
            if (IS_COSINE) by_x += sharp * part.angular;
            store(tile.x + place, by_x);
        }
    }
}

// dL/dx of a tile of keys in place of x.
inline void key_gradients(Mapped& tile, long rows, R power, const R* grad, const Widths& width) {
    for (long i = 0; i < rows; i++) {
        R radial = 0, sharp = 0;
        if constexpr (IS_COSINE) {
            Vec turned{};
            for (long d = 0; d < width.head; d += W)
                turned += direct(tile, i, d, grad, width).angular * load(tile.x + i * width.head + d);
            sharp = R(SHARPNESS) / tile.norm[i];
            radial = -total(turned) * sharp / (tile.norm[i] * tile.norm[i]);
        }
        for (long d = 0; d < width.head; d += W) {
            const long place = i * width.head + d;
            const Direct part = direct(tile, i, d, grad, width);
            Vec by_x = power * part.by_x;
            if constexpr (IS_COSINE) by_x += sharp * part.angular + radial * load(tile.x + place);
            store(tile.x + place, by_x);
        }
    }
}
