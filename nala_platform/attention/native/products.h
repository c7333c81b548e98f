// Products of small matrices that lie in a cache: C = A B or C += A B, a block of C at a time in registers.
#pragma once

#include <algorithm>

#include "lanes.h"

// A block: ROWS x WIDE vectors of sums, WIDE of B; a number of A is broadcast as it is used.
constexpr int ROWS = 6;
constexpr int WIDE = REGISTERS == 32 ? 4 : 2;

// A(i, k) stands at a[i * row + k * step]: with row = 1 and step = its width this is the transposed A.
struct Left {
    const R* a;
    long row, step;
};

template <int M, int N>
inline void block(Left left, long terms, const R* b, long b_row, R* c, long c_row, bool adds) {
    Vec sum[M][N];
#pragma GCC unroll 8
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) sum[i][j] = adds ? load(c + i * c_row + j * W) : Vec{};
    for (long k = 0; k < terms; k++) {
        Vec right[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) right[j] = load(b + k * b_row + j * W);
#pragma GCC unroll 8
        for (int i = 0; i < M; i++) {
            const R factor = left.a[i * left.row + k * left.step];
#pragma GCC unroll 4
            for (int j = 0; j < N; j++) sum[i][j] += factor * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) store(c + i * c_row + j * W, sum[i][j]);
}

template <int M, int N>
void rows_of(long rows, Left left, long terms, const R* b, long b_row, R* c, long c_row, bool adds) {
    if constexpr (M > 0) {
        if (rows >= M) {
            for (; rows >= M; rows -= M, left.a += M * left.row, c += M * c_row)
                block<M, N>(left, terms, b, b_row, c, c_row, adds);
        }
        if (rows > 0) rows_of<M - 1, N>(rows, left, terms, b, b_row, c, c_row, adds);
    }
}

template <int N>
void columns_of(long rows, long vectors, Left left, long terms, const R* b, long b_row, R* c, long c_row, bool adds) {
    if constexpr (N > 0) {
        for (; vectors >= N; vectors -= N, b += N * W, c += N * W)
            rows_of<ROWS, N>(rows, left, terms, b, b_row, c, c_row, adds);
        if (vectors > 0) columns_of<N - 1>(rows, vectors, left, terms, b, b_row, c, c_row, adds);
    }
}

// C (rows x columns) = or += A (rows x terms) B (terms x columns); columns is a multiple of a vector.
inline void product(
    long rows, long columns, Left left, long terms, const R* b, long b_row, R* c, long c_row, bool adds) {
    columns_of<WIDE>(rows, columns / W, left, terms, b, b_row, c, c_row, adds);
}

// out (rows x columns) = X M, the first `terms` of X's x_row columns; M is (terms x columns).
inline void multiply(long rows, const R* x, long x_row, long terms, const R* m, long columns, R* out) {
    product(rows, columns, {x, x_row, 1}, terms, m, columns, out, columns, false);
}

// sums (x_row x columns) += X^T Y of `rows` rows.
inline void accumulate(long rows, const R* x, long x_row, const R* y, long columns, R* sums) {
    product(x_row, columns, {x, 1, x_row}, rows, y, columns, sums, columns, true);
}

// out (columns x rows) = x (rows x columns) transposed.
inline void transpose(long rows, long columns, const R* x, long x_row, R* out, long out_row) {
    constexpr long EDGE = 16;
    for (long first = 0; first < rows; first += EDGE)
        for (long j = 0; j < columns; j++)
            for (long i = first; i < std::min(rows, first + EDGE); i++) out[j * out_row + i] = x[i * x_row + j];
}
