#!/bin/sh
# Builds an OpenBLAS that has only the functions that pullback calls: tools/build_openblas.sh /opt/openblas; then configure with
# -DPULLBACK_OPENBLAS=/opt/openblas. In a wheel it takes 1.2 MB; that of scipy-openblas32, which has the functions of all programs,
# takes 7.5 MB. The names are those of scipy-openblas32, so its headers fit. It needs git, CMake and a C compiler: LAPACK is
# compiled from the C sources that OpenBLAS contains, and so needs no Fortran runtime.
#
# OPENBLAS_URL is the repository to clone, if it is another than OpenBLAS's.
set -eu
to=$1
version=v0.3.28
commit=5ef8b1964658f9cb6a6324a06f6a1a022609b0c5
url=${OPENBLAS_URL:-https://github.com/OpenMathLib/OpenBLAS}
functions="
  cblas_sgemm cblas_dgemm cblas_sgemv cblas_dgemv cblas_strsm cblas_dtrsm
  LAPACKE_sgeqrf_work LAPACKE_dgeqrf_work LAPACKE_sgesdd_work LAPACKE_dgesdd_work LAPACKE_sgetrf_work LAPACKE_dgetrf_work
  LAPACKE_sgetrs_work LAPACKE_dgetrs_work LAPACKE_sorgqr_work LAPACKE_dorgqr_work LAPACKE_spotrf_work LAPACKE_dpotrf_work
  LAPACKE_ssyevd_work LAPACKE_dsyevd_work
  openblas_get_config openblas_get_corename openblas_set_num_threads
"

mkdir -p "$to"
cd "$to"
rm -rf source build
git clone --quiet --depth 1 --branch "$version" "$url" source
test "$(git -C source rev-parse HEAD)" = "$commit" || { echo "OpenBLAS $version is not commit $commit" >&2; exit 1; }

# The kernels that OpenBLAS chooses from at run time. Processors between these, such as AMD's, run the next older ones.
case $(uname -m) in
  x86_64) kernels='-DTARGET=NEHALEM -DDYNAMIC_LIST=HASWELL;SKYLAKEX' ;;
  *) kernels='-DTARGET=ARMV8' ;;
esac
# Without a Fortran compiler, OpenBLAS's CMakeLists.txt still compares the name of one.
# shellcheck disable=SC2086
cmake -S source -B build $kernels -DDYNAMIC_ARCH=ON -DBUILD_SINGLE=ON -DBUILD_DOUBLE=ON -DBUILD_COMPLEX=OFF -DBUILD_COMPLEX16=OFF \
  -DNOFORTRAN=ON -DC_LAPACK=ON -DCMAKE_Fortran_COMPILER_ID=none -DUSE_OPENMP=OFF -DNUM_THREADS=64 -DNO_AFFINITY=ON \
  -DBUILD_TESTING=OFF -DBUILD_SHARED_LIBS=OFF -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
  -DCMAKE_POLICY_VERSION_MINIMUM=3.5 >build.log 2>&1 || { tail -n 40 build.log; exit 1; }
cmake --build build --parallel "${JOBS:-$(nproc)}" --target openblas_static >>build.log 2>&1 || { tail -n 40 build.log; exit 1; }

# The linker takes those objects of the archive that these functions need.
set --
for name in $functions; do set -- "$@" "-Wl,--defsym,scipy_$name=$name"; done
echo '{ global: scipy_*; local: *; };' >exports
cc -shared -o libscipy_openblas.so -Wl,-soname,libscipy_openblas.so -Wl,--gc-sections -Wl,--version-script=exports "$@" \
  build/lib/libopenblas.a -lm -lpthread
strip --strip-unneeded libscipy_openblas.so
rm -rf source build
ls -l libscipy_openblas.so
