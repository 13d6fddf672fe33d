# Makefile: builds, tests and runs train_gpt_fsdp. `make help` lists everything.
#
# Conventions
#   - Compilers, libraries and GPUs are found by dev/configure.sh. MPI_HOME, HWLOC_HOME, CJSON_HOME, OPENSSL_HOME, CUDA_HOME
#     and NCCL_HOME name installations elsewhere (environment modules).
#   - The CUDA kernels are compiled if there is an nvcc; libcublasLt and libnccl are opened when they are used, so the
#     same program starts on machines without them. The tests also run the kernels emulated: the C++ compiler compiles
#     kernels/cuda/cuda.cu with dev/cuda_emu, which needs no toolkit.
#   - An object is rebuilt when its source, a header or its own command line changes (build/<object>.cmd keeps the line).
#   - kernels/cpu/cpu.cc is compiled per instruction set with explicit -m flags, so one binary runs on every x86-64
#     machine with AVX2, and one on every aarch64; which table runs is decided at start-up. It and kernels/cuda/cuda.cu
#     have an object for each family of ops (kernels/all.h).
.SECONDARY:
.SECONDEXPANSION:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif

define HELP
make              build ./train_gpt_fsdp
make all          and the tests, build/test_gpt_fsdp
make train        install what is missing, build, find or fetch WikiText-2, train `tiny` on 2 ranks (about 3 minutes)
make test         install what is missing, build (about 2 minutes), run the tests (under 12 minutes on 2 cores)
make plan         what a run would need and how long it would take: ARGS="--model gpt2-xl --world 64 --on h200"
make compare      one training under each way of sharding: time, memory, bytes, measured beside planned
make prove        train once uninterrupted, once killed twice and resumed on other numbers of ranks: equal weights
make speedrun     seconds of training until modern-tiny has 1.80 bits per byte on WikiText-2, and PyTorch's where it is
make check        build and the most telling tests: about a minute on 2 cores after an edit of the trainer
make test-all     the tests with more combinations and seeds, then dev/dist_check.sh and an hour of `make soak`
make soak         random faults on hosts that are network namespaces, SOAK_S=3600 seconds: same weights, nothing left
make bench        against the fastest PyTorch (ARGS=ratios), op by op, checkpoints, quality; PYTHON has torch (dev/bench.sh)
make fuzz         run the file readers on damaged files: FUZZ_SECONDS=30 each, T=target for one (needs clang++)
make ptxas        registers, spills and shared memory of every CUDA kernel
make sass         machine code of the hot CUDA kernels: spills, reads, tensor cores, predictions (cuobjdump)
make arm          build for ARM beside x86-64 and compare, by emulation (dev/arm.sh setup installs what it needs)
make dist         dist/*.tar.gz: the program with its own Open MPI, for a Linux without any (DIST_ARCH=aarch64: for ARM);
                  make wheel packs it for pip (dev/dist.sh says what both need)
make setup        only install what is missing (dev/setup.sh)
make check-modules headers include only public headers of modules below them; make check-headers also compiles each alone
                  (half a minute); make check-style looks for tabs, spaces, columns over 120 and words that left
make clean        remove what was built

NP=4              ranks of `make train` (2)            V=1          show whole command lines
TEST_JOBS=N       tests that run at a time (one a core)
ARGS="..."        more options for the program         WERROR=1     warnings are errors (also when CI=true)
T=name            `make test`: only this test          SAN=1        build and test with ASan and UBSan in build/san/
DEVICE=cpu        device of `make train` and tests     CUDA=0       leave the CUDA kernels out
WIKITEXT2_DIR=D   directory of WikiText-2's train.txt, valid.txt and test.txt
ARCHS="..."       nvcc's -gencode options (this machine's GPUs; else sm_80, sm_90a, sm_100, on ARM sm_121, and PTX)
CXX=clang++  MPI_HOME=D  HWLOC_HOME=D  CJSON_HOME=D  OPENSSL_HOME=D  CUDA_HOME=D  NCCL_HOME=D (else pip's is looked for)
MPICC=mpicc  MPIRUN=mpirun  PYTHON=python3
endef

# ---- what to build with -------------------------------------------------------------------------------------------------
NP ?= 2
CUDA_HOME ?= /usr/local/cuda
MPICC ?= $(if $(MPI_HOME),$(MPI_HOME)/bin/mpicc,mpicc)
MPIRUN ?= $(if $(MPI_HOME),$(MPI_HOME)/bin/mpirun,mpirun)
B := $(if $(filter 1,$(SAN)),build/san,build)
TRAINER := $(if $(filter 1,$(SAN)),$(B)/train_gpt_fsdp,train_gpt_fsdp)
TESTS := $(B)/test_gpt_fsdp
.DEFAULT_GOAL := $(TRAINER)
# Anything but these targets compiles something and needs the libraries.
BUILDS := $(filter-out help clean setup dist wheel check-style check-modules check-rooms,$(or $(MAKECMDGOALS),$(TRAINER)))
HASH := \#
comma := ,
same = $(and $(findstring |$1|,|$2|),$(findstring |$2|,|$1|))
quoted = '$(subst ','\'',$1)'

ifneq ($(BUILDS),)
# Compilers, libraries and GPUs: looked for when something changed since the last time.
FOUND := $(B)/found.mk
ASKED := CXX MPICC MPIRUN PYTHON MPI_HOME HWLOC_HOME CJSON_HOME OPENSSL_HOME CUDA_HOME CUDA_HOME_NAMED NCCL_HOME CUDA ARCHS
CUDA_HOME_NAMED := $(filter-out file,$(origin CUDA_HOME))
$(shell dev/configure.sh $(FOUND) $(foreach v,$(ASKED),$(call quoted,$v=$($v))))
include $(FOUND)
ARCHS ?= $(ARCHS_HERE)

# Without a GPU these targets run no CUDA kernels, and do not wait until they are compiled.
GPU_HERE := $(wildcard /dev/nvidia[0-9]* /dev/nvhost-gpu /dev/dxg)
ifeq ($(GPU_HERE)$(CUDA)$(filter cuda,$(DEVICE))$(filter-out train check prove compare soak speedrun,$(BUILDS)),)
ifneq ($(WITH_CUDA),)
WITH_CUDA :=
NO_CUDA := no GPU was there when it was built for a run
$(info CUDA kernels are left out: no GPU is here (`make`, or CUDA=1, compiles them))
endif
endif
endif

help:
	$(info $(HELP))@:
setup:
	@dev/setup.sh
dist wheel:
	@dev/dist.sh $(@:dist=archive) $(DIST_ARCH)
clean:
	rm -rf build dist train_gpt_fsdp
check-style:
	@! LC_ALL=C.UTF-8 grep -nP '\t| +$$|^.{121,}' $$(git ls-files -co --exclude-standard | grep -E '\.(cu|cuh|h|cc|py|sh)$$|^\.ci/run$$') \
	  || { echo "check-style: the lines above have a tab, trailing spaces or more than 120 columns" >&2; exit 1; }
	@dev/check_words.sh

# The modules, each above those before it (docs/design.md).
MODULES := base/newfile base base/net watch kernels memory machine launch fsdp data/files data/gguf data/tokenizer \
  data/chat data/tokens data data/tensors data/shape data/models data/checkpoint run/options run/report run run/plan
SOURCES := $(foreach r,$(MODULES) kernels/cpu kernels/cuda,$(wildcard $r/*.h $r/*.cuh $r/*.c[uc]))
HEADERS := fsdp.h $(filter %.h %.cuh,$(SOURCES))
INCLUDES := $(HEADERS) $(wildcard dev/cuda_emu/*.h)
PUBLIC_HEADERS := $(patsubst fsdp/fsdp.h,fsdp.h fsdp/plan.h,$(foreach r,$(filter-out kernels,$(MODULES)),$r/$(notdir $r).h))
check-modules check-rooms:
	@dev/check_modules.sh "$(MODULES)" "$(PUBLIC_HEADERS)" $(INCLUDES) $(filter %.cc %.cu,$(SOURCES)) train_gpt_fsdp.cu $(wildcard trainer/*.h)

.PHONY: dist wheel all train test test-all arm soak check check-headers check-modules plan compare prove speedrun bench fuzz ptxas sass help setup clean check-style check-symbols FORCE

ifneq ($(MISSING),)
# ---- something is missing: train and test may install it, everything else only says so -----------------------------
.NOTPARALLEL:
ifeq ($(SETUP_DONE),)
train test test-all check:
	@echo "missing: $(strip $(MISSING))"
	@dev/setup.sh
	@$(MAKE) SETUP_DONE=1 $@
endif
# make itself names a target that does not exist.
THERE := all $(if $(SETUP_DONE),train test test-all check) check-headers plan compare prove speedrun soak arm bench fuzz ptxas sass check-symbols train_gpt_fsdp build/%
$(filter $(THERE),$(BUILDS)): FORCE
	@$(foreach m,$(MISSING),echo 'not found: $(FIX_$m)' >&2;)
	@echo 'To install what is missing: dev/setup.sh (or set the paths above).' >&2; exit 1
else

# ---- commands: cmd_<object> compiles src_<object> to build/<object>.o ---------------------------------------------------
# clang calls a comma before ## an extension, whatever -std says.
WARNINGS := -Wall -Wextra -Wpedantic $(if $(findstring clang,$(CXX)),-Wno-gnu-zero-variadic-macro-arguments) $(if $(filter 1 true,$(WERROR) $(CI)),-Werror)
SANITIZE := $(if $(filter 1,$(SAN)),-g -O1 -fno-omit-frame-pointer -fsanitize=address$(comma)undefined \
  -fno-sanitize-recover=undefined)
COMMON := $(CXX) -std=c++17 -ffp-contract=off -fno-exceptions -fno-rtti $(WARNINGS) $(MPI_CFLAGS) $(LIBRARY_CFLAGS) -I.
# What ranks must have in common: sources, flags, compiler. Printed at the head of every log. An object of its own, so that
# nothing else is compiled when it changes.
cmd_build := $(COMMON) -x c++
also_build = $(COMPILERS) $(TARGET) $(SANITIZE) $(CXXFLAGS) $(if $(WITH_CUDA),$(ARCHS) $(NVCCFLAGS),$(NO_CUDA))
BUILT_OF := Makefile dev/configure.sh train_gpt_fsdp.cu $(wildcard trainer/*.h data/chat/templates/*) fsdp.h $(SOURCES)

# amx_emulated: the AMX code with its tile instructions replaced by C: it proves the logic on machines without AMX, in
# the tests only.
ISAS := $(if $(ARM),neon neon_bf16,avx2 avx512 avx512_bf16 amx)
ISAS_TESTED := $(if $(ARM),,amx_emulated)
M_avx2 := -mavx2 -mfma -mf16c -mbmi2
M_avx512 := $(M_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl
M_avx512_bf16 := $(M_avx512) -mavx512bf16
M_amx := $(M_avx512_bf16) -mamx-tile -mamx-bf16
M_amx_emulated := $(M_avx512_bf16) -DAMX_EMULATED=1
M_neon_bf16 := -march=armv8.2-a+bf16

# -Wno-psabi: vectors are passed between static functions only, so their calling convention does not matter.
# Where there are tiles the other families are those of avx512_bf16, which ISAS must have then.
FAMILIES := device norms pointwise loss gemm matmul muon attention optimizer blocks
FAMILIES_amx := device gemm matmul muon attention
FAMILIES_amx_emulated := $(FAMILIES_amx)
FAMILIES_CUDA := attention norms $(filter-out attention norms gemm muon,$(FAMILIES)) wgmma     # the longest first
families = $(or $(FAMILIES_$1),$(FAMILIES))
family = -DONE_FAMILY -DFAMILY_$1=1
$(foreach i,$(ISAS) $(ISAS_TESTED),$(foreach f,$(call families,$i),$(eval cmd_cpu_$i.$f := $(COMMON) -O3 -Wno-psabi \
  $(M_$i) -DISA=$i $(if $(FAMILIES_$i),-DISA_OF_VECTORS=avx512_bf16) $(call family,$f) $(SANITIZE) $(CXXFLAGS)) \
  $(eval src_cpu_$i.$f := kernels/cpu/cpu.cc)))
cpu_objects = $(foreach i,$1,$(patsubst %,cpu_$i.%,$(call families,$i)))
# A module is one object. The model and the sharding layer leave a step's work to ops: -O1 is a second or two less than
# -O2 after an edit.
MODULE_OBJECTS := $(notdir $(MODULES)) threads op_calls
$(foreach r,$(MODULE_OBJECTS),$(eval cmd_$r := $(COMMON) -O2 $(SANITIZE) $(CXXFLAGS)) \
  $(eval src_$r := $(filter %/$r.cc,$(SOURCES))))
cmd_fsdp := $(COMMON) -O1 $(SANITIZE) $(CXXFLAGS)
cmd_train_gpt_fsdp := $(COMMON) -O1 $(SANITIZE) $(CXXFLAGS) -x c++
src_train_gpt_fsdp := train_gpt_fsdp.cu
# -O0: a third of the time to compile, and tests spend theirs in kernels and in runs of the program.
cmd_test_gpt_fsdp := $(COMMON) -O0 $(SANITIZE) $(CXXFLAGS) -x c++
src_test_gpt_fsdp := test_gpt_fsdp.cu
# Each with the modules that its tests look into: together they are the whole program.
TEST_PARTS := ops launch data model
$(foreach p,$(TEST_PARTS),$(eval cmd_test_$p := $(COMMON) -O0 $(SANITIZE) $(CXXFLAGS)) $(eval src_test_$p := dev/test/$p.cc))
$(foreach p,bench_ops.cu render_template.cc,$(eval cmd_$(basename $p) := $(COMMON) -O2 $(SANITIZE) $(CXXFLAGS) -x c++) \
  $(eval src_$(basename $p) := dev/$p))
also_link = $(LIBS)
OBJECTS := $(patsubst %,$(B)/%.o,$(call cpu_objects,$(ISAS)))

ifneq ($(WITH_CUDA),)
# -ccbin: a compiler named by the user compiles the host's part too. --fmad=false: as -ffp-contract=off on the host.
NVCC_COMMAND := $(NVCC) $(if $(filter-out default,$(origin CXX)),$(if $(word 2,$(CXX)),,-ccbin $(CXX))) -std=c++17 -O2 \
  --fmad=false -lineinfo $(if $(findstring sm_90a,$(ARCHS)),-DBUILT_FOR_SM90A=1) -I. $(NCCL_AT:%=-I%/include) \
  $(if $(filter -Werror,$(WARNINGS)),-Werror all-warnings) -Xcompiler -Wall,-Wextra,-ffp-contract=off
# Kernels that ask for instructions of later architectures have PTX of each, others of one or two (dev/configure.sh).
archs = $(or $(if $(filter device loss wgmma,$1),,$(if $(filter attention norms blocks,$1),$(ARCHS_TWO),$(ARCHS_ONE))),$(ARCHS))
$(foreach f,$(FAMILIES_CUDA),$(eval cmd_cuda.$f := $(NVCC_COMMAND) $(call archs,$f) \
  $(call family,$f) --threads 0 $(NVCCFLAGS)) $(eval src_cuda.$f := kernels/cuda/cuda.cu))
CUDA_OBJECTS := $(FAMILIES_CUDA:%=$(B)/cuda.%.o)
OBJECTS := $(CUDA_OBJECTS) $(OBJECTS)
LIBS += $(CUDA_LIBS)
endif
EMULATED_FLAGS := $(if $(ARM),,-mfma -mf16c) -DCUDA_EMULATED -Idev/cuda_emu
$(foreach f,$(FAMILIES_CUDA),$(eval cmd_cuda_emulated.$f := $(COMMON) -O3 $(EMULATED_FLAGS) $(call family,$f) $(SANITIZE) \
  $(CXXFLAGS)) $(eval src_cuda_emulated.$f := dev/cuda_emu/emu.cc) $(eval EMULATED += cuda_emulated.$f))
cmd_check-headers := $(COMMON) -Wno-unused -fsyntax-only -x c++
alone_header = $(1:$(firstword $(subst /, ,$1))/%=%)
cmd_link := $(CXX) $(SANITIZE) $(LDFLAGS)
FUZZ_CXX ?= clang++
FUZZ_SANITIZE := -fsanitize=fuzzer,address,undefined,float-cast-overflow -fno-sanitize-recover=all
cmd_fuzz := $(FUZZ_CXX) -std=c++17 -g -O1 -fno-exceptions -fno-rtti -fno-omit-frame-pointer $(FUZZ_SANITIZE) $(MPI_CFLAGS) \
  $(LIBRARY_CFLAGS) -I.
src_fuzz := dev/fuzz.cc

# ---- rules ----------------------------------------------------------------------------------------------------------
run = @$(if $(filter 1,$(V)),echo '$(2)';,printf '  %-5s %s\n' '$(1)' '$@';) $(2)

all: $(TRAINER) $(TESTS)

line = $(strip $(cmd_$1) $(also_$1))
$(B)/%.cmd: $$(if $$(call same,$$(call line,$$*),$$(strip $$(file <$(B)/$$*.cmd))),,FORCE)
	@mkdir -p $(B); printf '%s\n' $(call quoted,$(call line,$*)) > $@
$(B)/%.o: $$(src_$$*) $(B)/%.cmd
	$(call run,$(if $(filter cuda.%,$*),NVCC,CXX),$(cmd_$*) -MMD -MP -c $(src_$*) -o $@)
$(B)/build.o: $(BUILT_OF) $(B)/build.cmd
	@id=$$(export LC_ALL=C; { cat $(BUILT_OF); echo $(call quoted,$(strip $(also_build))); } | sha256sum | cut -c 1-12); \
	  printf '  CXX   %s\n' '$@'; \
	  printf 'extern const char build_id[16], build_no_cuda[256]; const char build_id[16] = "%s", build_no_cuda[256] = "%s";\n' \
	    "$$id" $(call quoted,$(subst ",',$(if $(WITH_CUDA),,$(NO_CUDA)))) | $(cmd_build) -c - -o $@
$(TRAINER): $(B)/train_gpt_fsdp.o $(MODULE_OBJECTS:%=$(B)/%.o) $(B)/build.o $(OBJECTS) $(B)/link.cmd
	$(call run,LINK,$(cmd_link) $(filter %.o,$^) -o $@ $(LIBS))
$(B)/bench_ops: $(B)/bench_ops.o $(OBJECTS) $(B)/link.cmd
	$(call run,LINK,$(cmd_link) $(filter %.o,$^) -o $@ $(LIBS))
$(TESTS): $(B)/test_gpt_fsdp.o $(TEST_PARTS:%=$(B)/test_%.o) $(OBJECTS) $(B)/link.cmd \
  $(patsubst %,$(B)/%.o,$(EMULATED) $(call cpu_objects,$(ISAS_TESTED)))
	$(call run,LINK,$(cmd_link) $(filter %.o,$^) -o $@ $(LIBS))
# As on a machine whose GPU is the emulator: what REHEARSE of dev/gpu_day.sh runs.
ON_EMULATOR := $(patsubst %,$(B)/emulated/%,train_gpt_fsdp test_gpt_fsdp bench_ops)
$(B)/emulated/train_gpt_fsdp: $(B)/train_gpt_fsdp.o $(MODULE_OBJECTS:%=$(B)/%.o) $(B)/build.o
$(B)/emulated/test_gpt_fsdp: $(B)/test_gpt_fsdp.o $(TEST_PARTS:%=$(B)/test_%.o) $(patsubst %,$(B)/%.o,$(call cpu_objects,$(ISAS_TESTED)))
$(B)/emulated/bench_ops: $(B)/bench_ops.o
$(ON_EMULATOR): $(filter-out $(CUDA_OBJECTS),$(OBJECTS)) $(EMULATED:%=$(B)/%.o) $(B)/link.cmd
	@mkdir -p $(@D)
	$(call run,LINK,$(cmd_link) -Wl$(comma)--defsym$(comma)ops_cuda=ops_cuda_emulated $(filter %.o,$^) -o $@ $(LIBS))
-include $(wildcard $(B)/*.d $(B)/alone/*/*.d $(B)/alone/*/*/*.d $(B)/alone/*/*/*/*.d)
$(B)/chat.o $(B)/test_data.o $(B)/fuzz.o: $(wildcard data/chat/templates/*.jinja)
# An earlier build directory may name sources that are elsewhere now.
kernels/%.cc kernels/%.cu: ;

CHECKED := kernels $(call cpu_objects,$(ISAS) $(ISAS_TESTED)) $(if $(WITH_CUDA),$(FAMILIES_CUDA:%=cuda.%)) $(EMULATED)
check-symbols: $(CHECKED:%=$(B)/%.o) $(MODULE_OBJECTS:%=$(B)/%.o) $(B)/train_gpt_fsdp.o
ifneq ($(SAN),1)
	@dev/check_exports.sh $(B) $(CHECKED)
	@dev/check_public_headers.sh $(B) $(foreach d,$(filter-out fsdp%,$(PUBLIC_HEADERS)),$(notdir $(d:%.h=%))=$d) fsdp=fsdp.h+fsdp/plan.h threads=kernels/cpu/threads.h op_calls=kernels/op_calls.h
endif

# Each header compiles alone, in every part that it has (PART_ in kernels/ops.h).
# vec_x86.h and vec_neon.h are parts of vec.h.
CUDA_ONLY := kernels/cpu/vec_% kernels/cuda/% kernels/%_cuda.cuh kernels/attention_parts.cuh kernels/attention_plain.cuh \
  kernels/attention_tensorcore.cuh kernels/attention_wgmma.cuh
CPU_ONLY := kernels/cpu/vec% kernels/cpu/block% kernels/cpu/amx.h kernels/cpu/gemm% kernels/attention_fp32.cuh kernels/attention_bf16.cuh
KERNELS := $(filter kernels/%,$(HEADERS))
ALONE := $(patsubst %,$(B)/alone/LAUNCH/%,$(filter-out $(CUDA_ONLY) $(CPU_ONLY),$(HEADERS)) kernels/cuda/nvidia.h) \
  $(patsubst %,$(B)/alone/CPU/%,$(filter-out $(CUDA_ONLY),$(KERNELS))) \
  $(patsubst %,$(B)/alone/CUDA/%,$(filter-out $(CPU_ONLY) kernels/cpu/threads.h,$(KERNELS)) $(wildcard dev/cuda_emu/*.h))
flags_CPU := -Wno-psabi $(if $(ARM),$(M_neon_bf16) -DISA=neon_bf16,$(M_amx_emulated) -DISA=amx_emulated)
flags_CUDA := $(EMULATED_FLAGS)
flags_LAUNCH = $(if $(filter LAUNCH/kernels/%,$*),-DPART_LAUNCHERS=1)
check-headers: check-modules $(ALONE)
$(ALONE): $(B)/alone/%: $(B)/check-headers.cmd $$(call alone_header,$$*)
	@mkdir -p $(@D); printf '#include "%s"\n' $(call alone_header,$*) | $(cmd_check-headers) \
	  -DPART_$(firstword $(subst /, ,$*))=1 $(flags_$(firstword $(subst /, ,$*))) -MMD -MP -MT $@ -MF $@.d - && touch $@

ifneq ($(WITH_CUDA),)
ptxas:
	@mkdir -p $(B); { $(foreach f,$(FAMILIES_CUDA),$(filter-out --threads 0,$(cmd_cuda.$f)) -Xptxas -v -c $(src_cuda.$f) \
	  -o $(B)/ptxas.o;) } 2>&1 | dev/ptxas.sh; s=$$?; rm -f $(B)/ptxas.o; exit $$s
sass: $(CUDA_OBJECTS)
	@SASS_OBJECTS="$(CUDA_OBJECTS)" dev/sass.py $(ARGS)
else
ptxas sass:
	@echo "$@: this needs nvcc, cublasLt.h and nccl.h" >&2; exit 1
endif

# ---- running --------------------------------------------------------------------------------------------------------
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif
# OpenMPI never frees some of its allocations; other libraries' leaks are not reported. The CUDA driver maps memory where
# ASan keeps its gap.
export ASAN_OPTIONS ?= detect_leaks=0:protect_shadow_gap=0
# OpenMPI's slots are cores, not hardware threads.
CORES = $(shell lscpu -p=Core,Socket 2>/dev/null | grep -v '^$(HASH)' | sort -u | wc -l)
MPIRUN_FLAGS ?= $(shell [ $(CORES) -ge $(NP) ] && [ $$(nproc) -ge $(NP) ] || echo --oversubscribe)

train: $(TRAINER)
	@if [ -z "$$WIKITEXT2_DIR" ] && [ -z '$(findstring --data,$(ARGS))' ]; then \
	  if data/get_wikitext2.sh data/wikitext-2; then export WIKITEXT2_DIR=data/wikitext-2; \
	  else echo "WikiText-2 could not be fetched: training on the generated corpus (WIKITEXT2_DIR=DIR names a copy)"; fi; fi; \
	  set -x; $(MPIRUN) $(MPIRUN_FLAGS) -np $(NP) ./$(TRAINER) $(if $(findstring --model,$(ARGS)),,--model tiny) \
	  $(DEVICE:%=--device %) $(ARGS)
RUNS = TRAIN_GPT_FSDP="$(CURDIR)/$(TRAINER)" MPIRUN="$(MPIRUN)" PYTHON="$(PYTHON)" NP=$(NP) DEVICE="$(DEVICE)"
TEST = $(RUNS) TEST_JOBS="$(TEST_JOBS)" ./$(TESTS)
test test-all: $(TRAINER) $(TESTS) $(B)/emulated/train_gpt_fsdp check-symbols check-modules
	@$(TEST) $(if $(filter test-all,$@),--all) $(T)
	@$(if $(filter test-all,$@),$(if $(T),,for s in dev/dist_check.sh "dev/soak.sh ./$(TRAINER)"; do $$s || [ $$? -eq 77 ] || exit 1; done))
arm: $(TRAINER) $(TESTS)
	@dev/arm.sh make all
	@$(TEST) arm_
# What an edit of the trainer breaks first: gradients and steps beside PyTorch's, bits over ranks and threads, the plan
# of memory and traffic, steps on CUDA kernels and over NCCL (emulated), a run resumed on other ranks.
CHECKED_FIRST := gpt_gradients_equal_pytorch ten_steps_equal_pytorch ranks_and_threads_change_no_bit_fp32 \
  memory_is_what_was_planned gather_slots_change_no_bit cuda_gradients_equal_pytorch cuda_step_equals_cpu_step \
  gpu_memory_is_what_was_planned cli_resume_by_the_same_command
check: $(TRAINER) $(TESTS)
	@$(TEST) $(CHECKED_FIRST)
plan: $(TRAINER)
	@./$(TRAINER) --plan $(ARGS)
compare: $(TRAINER)
	@$(RUNS) MPIRUN="$(MPIRUN) $(MPIRUN_FLAGS)" "$(or $(PYTHON),python3)" dev/compare.py $(ARGS)
prove: $(TRAINER)
	@$(RUNS) dev/prove.sh
soak: $(TRAINER)
	@dev/soak.sh ./$(TRAINER)
bench: $(TRAINER) $(B)/bench_ops
	@MPIRUN="$(MPIRUN)" dev/bench.sh $(ARGS)
speedrun: $(TRAINER)
	@[ -n "$$WIKITEXT2_DIR" ] || { data/get_wikitext2.sh data/wikitext-2 && export WIKITEXT2_DIR=data/wikitext-2; }; \
	  $(RUNS) dev/speedrun.sh $(DEVICE:%=--device %) $(ARGS)

FUZZ_SECONDS ?= 30
FUZZ := $(B)/fuzz
FUZZ_UNTIL := -max_total_time=$(FUZZ_SECONDS)
FUZZ_FLAGS := $(FUZZ_UNTIL) -timeout=10 -rss_limit_mb=1024 -max_len=16384
$(FUZZ)/fuzz: $(B)/fuzz.o
	@mkdir -p $(FUZZ)
	$(call run,LINK,$(FUZZ_CXX) $(FUZZ_SANITIZE) $< -o $@ $(LIBS))
fuzz:
	@dev/fuzz.sh probe $(FUZZ_CXX) $(FUZZ_SANITIZE)
	@$(MAKE) $(FUZZ)/fuzz
	@dev/fuzz.sh run '$(FUZZ)' '$(FUZZ_FLAGS)' $(T)
endif
