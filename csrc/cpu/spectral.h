// The kernels on singular values, eigenvalues and orthonormal factors (see families/linalg.h).
#pragma once
#include "launch/door.h"

namespace pb::cpu {

void run_qr(const Launch& launch);
void run_eigh(const Launch& launch);
void run_eigvalsh(const Launch& launch);
void run_svd(const Launch& launch);
void run_svdvals(const Launch& launch);
void run_cofactors(const Launch& launch);
void run_pinv(const Launch& launch);

// Replaces a square matrix by its LU factors, with partial pivoting. Returns -1 if that exchanges rows an odd number of times,
// otherwise 1.
int determinant_sign(int64_t n, float* a);
int determinant_sign(int64_t n, double* a);

}  // namespace pb::cpu
