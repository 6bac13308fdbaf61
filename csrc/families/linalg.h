// Factorisations of matrices, linear systems, and what follows from them. The matrices are the last two axes; all other axes are
// those of the batch.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// Inputs have the dtype of the output, a float, and any strides; outputs are contiguous. Half precision is computed in float32 and
// rounded once. The batch axes of all inputs are those of the output. A kernel throws BadMatrix (launch/failure.h).
//
// cholesky: out: the lower factors. in: x, which stands for its symmetric part.
// solve_triangular: out: x of a x = b. in: a, b. ints: a is upper triangular; its diagonal counts as 1; throw for a zero on the
//   diagonal, otherwise the result is NaN.
// solve: as solve_triangular, by LU with partial pivoting. ints: 0 for NaN in place of the solution if a matrix is singular, otherwise
//   the caller.
// solve_pullback: out: the gradients of a and b, contiguous; data is null and the size 0 if a gradient is not needed. in: a, the
//   cotangent of x, x. They are NaN for a singular matrix.
// det: out: one number for each matrix. slogdet: out: the sign and the logarithm along the last axis. in: x.
// cofactors: out: the matrices of cofactors. in: x.
// qr: out: q, and below it the transposed r. in: x. ints: the complete q.
// eigh: out: a row of zeros, the eigenvalues as a row, and the eigenvectors below. eigvalsh: the first two rows. in: x, as in
//   cholesky.
// svd: out: a row of zeros, the singular values as a row, u and v, one above the other; zeros fill the rows that are shorter. in: x.
//   ints: the full u and v. svdvals: out: the first two rows. in: x. ints: the caller.
// pinv: out: the pseudo-inverse, and if the int, a caller, is not 0, below it one row with the singular values and zeros. in: x, and
//   one relative tolerance for each matrix, up to which singular values count as zero.
//
// A caller is a number of at least 1, which is the first of `ints`; from 2 on, errors have the name of another function of Python that
// runs the kernel (CALLERS in python/pullback/launch/refusal.py).
struct Linalg {
  Kernel cholesky, solve_triangular, solve, solve_pullback, det, slogdet, cofactors, qr, eigh, eigvalsh, svd, svdvals, pinv;
};

// Each backend defines the function. A kernel that it lacks is {}: its op runs in the library of the backend's arrays instead.
const Linalg& linalg();

// The costs, by Golub & Van Loan, Matrix Computations (4th ed.). For LU and Cholesky they leave terms of lower order out.
void cost_of_cholesky(const Launch& launch, Cost& cost);
void cost_of_solve_triangular(const Launch& launch, Cost& cost);
void cost_of_solve(const Launch& launch, Cost& cost);
void cost_of_solve_pullback(const Launch& launch, Cost& cost);
void cost_of_lu(const Launch& launch, Cost& cost);
void cost_of_cofactors(const Launch& launch, Cost& cost);
void cost_of_qr(const Launch& launch, Cost& cost);
void cost_of_eigh(const Launch& launch, Cost& cost);
void cost_of_eigvalsh(const Launch& launch, Cost& cost);
void cost_of_svd(const Launch& launch, Cost& cost);
void cost_of_svdvals(const Launch& launch, Cost& cost);
void cost_of_pinv(const Launch& launch, Cost& cost);

// The rows and columns of an operand's matrices, and their number.
struct Matrices {
  int64_t rows, columns, count;
};
inline Matrices matrices_of(const View& v) {
  Matrices m{v.shape[v.ndim - 2], v.shape[v.ndim - 1], 1};
  for (int d = 0; d < v.ndim - 2; ++d) m.count *= v.shape[d];
  return m;
}

}  // namespace pb::kernels
