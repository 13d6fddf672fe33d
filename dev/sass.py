#!/usr/bin/env python3
"""What nvcc made of the CUDA kernels that a training step runs, read from their machine code (SASS). Nothing is
measured. Ends with 1 if a property is lost that speed depends on:

  no spills      hot kernels keep no register in local memory (dk, dv of 128 columns: few); others as SPILLS allows
  in flight      what is read for the next row of a loop is not touched before the loop's end (IN_FLIGHT)
  tensor cores   kernels of TENSOR have HMMA instructions, those of WARPGROUP have HGMMA (on sm_90a alone)
  read once      kernels of READ_ONCE copy a row into shared memory 16 bytes at a time, and read none again
  batched        each loop of BATCHED's kernels that reads 16 bytes at a time asks for 64 before it looks at any
  wavefronts     a kernel of WAVES has an instance with at most so many wavefronts of shared memory for an HMMA
  contiguous     no thread of FLAT's kernels takes two neighbouring 16-byte pieces, so that a warp's are side by side

    make sass                            all hot kernels
    make sass ARGS="--kernels PATTERN"   those whose name contains PATTERN, hot or not

Needs cuobjdump, of the CUDA Toolkit or from PyPI (nvidia-cuda-cuobjdump); CUOBJDUMP names another one.
Columns: registers a thread; local: loads and stores of spilled registers; shared: bytes of static shared memory;
tensor: HMMA and HGMMA; lds: reads of shared memory (LDS, LDSM); ldg: reads of global memory, and how many are of 16
bytes; stg: writes; bar: barriers. All are counted in the code, not in what runs.

The second table is a prediction from counts, of attention on an H100 or H200 SXM; no GPU was asked. For each tile that
a warp computes, from the loop that has the tensor instructions: HMMA; wavefronts of shared memory, 128 bytes each, that
the warp reads (LDSM.x4: 4; LDS of 4, 8, 16 bytes: 1, 2, 4) and its share of what cp.async writes (4 each); EX2. An
SM of Hopper does an HMMA a cycle at the dense peak (4096 FLOP), of which mma.sync reaches at most MMA_SYNC
by others' measurements. An HGMMA of 64 x N x 16, of four warps together, is N / 2 of them and reads operands
automatically: its line is a tile of a warpgroup, whose wavefronts are those of cp.async alone. An SM moves one
wavefront and 16 results of EX2 per cycle. The slowest of the three bounds the tile; % of peak is what the HMMAs take at
the dense peak, divided by that. What is not in it, and makes it less: other instructions, waits, tiles on the diagonal,
of which half is in vain. blocks: that registers let an SM hold.
"""
import glob
import os
import re
import shutil
import subprocess
import sys

HOT = ['layernorm_forward_kernel<bf16, 8, 1>', 'layernorm_backward_warps_kernel<bf16, 3, ',
       'layernorm_backward_warps_kernel<bf16, 2, ', 'layernorm_backward_kernel<bf16, 8, 1, ',
       'embedding_wte_kernel<bf16, 8>', 'embedding_wpe_kernel<bf16, 8>', 'cross_entropy_backward_kernel<bf16, ',
       'cross_entropy_forward_kernel<4>', 'flat_by_kernel<4, 4, AdamwOp<bf16, low16, true, float, ',
       'flat_kernel<4, AccumulateOp<bf16>', 'norm_kernel<4, true, float>', 'norm_kernel<4, false, float>',
       'attention_forward_kernel<bf16, 64', 'attention_dq_kernel<bf16, 64', 'attention_dkv_kernel<bf16, 64',
       'attention_forward_kernel<bf16, 128', 'attention_dq_kernel<bf16, 128', 'attention_dkv_kernel<bf16, 128',
       'attention_forward_wgmma_kernel<bf16', 'attention_dq_wgmma_kernel<bf16', 'attention_dkv_wgmma_kernel<bf16']
IN_FLIGHT = ['layernorm_backward_warps_kernel<bf16, ', 'layernorm_backward_warps_kernel<fp16, ',
             'layernorm_backward_kernel<bf16, 8, 1, ', 'layernorm_backward_kernel<fp16, 8, 1, ']
# The forms of cross entropy (kernels/cross_entropy.cuh): 0 reads a row twice, 1 keeps it, 2 keeps it in a cluster.
CROSS_ENTROPY = ['cross_entropy_backward_kernel<%s, float, 4, ' % t for t in ('bf16', 'fp16', 'float')]
CROSS_ENTROPY += ['cross_entropy_backward_kernel<bf16, bf16, 8, ']
READ_ONCE = ['%s%d>' % (k, f) for k in CROSS_ENTROPY for f in (1, 2)]
# Rows of bf16 logits are kept in shared memory: 83,000 tokens on an A100, 116,000 on an H100.
BATCHED = ['%s0>' % k for k in CROSS_ENTROPY[:3]]
BATCHED += ['cross_entropy_forward_kernel<4>']
FLAT = ['flat_kernel<', 'flat_by_kernel<', 'norm_kernel<', 'cross_entropy_']
MMA_SYNC = 0.65
WARPGROUP = ['attention_forward_wgmma_kernel<', 'attention_dq_wgmma_kernel<', 'attention_dkv_wgmma_kernel<']
TENSOR = ['attention_forward_kernel<bf16', 'attention_dq_kernel<bf16', 'attention_dkv_kernel<bf16']
# Smaller tiles are for SMs with less shared memory, so the best instance counts.
WAVES = {'attention_dkv_kernel<bf16, 64, ': 1.3, 'attention_dkv_kernel<bf16, 80, ': 2.2,
         'attention_dkv_kernel<bf16, 128, ': 2.3, 'attention_dq_kernel<bf16, 64, ': 1.2}
# The most loads and stores of local memory. The first are no spills, but arrays that a thread indexes. dk and dv of 128
# columns by wgmma have no register left, and did 350 TFLOP/s with 9 registers there. The third sum of
# layernorm_backward spills in rows beyond 2048 columns.
SPILLS = {'muon_divide_kernel<': 99, 'lora_': 11, 'matmul_blocks_kernel<': 9, 'blocks_rows_kernel<': 9,
          'matmul_fill_kernel<': 4, 'step_decide_kernel': 15, 'preference_kernel': 2,
          'attention_dkv_wgmma_kernel<bf16, 128': 99, 'attention_dkv_wgmma_kernel<fp16, 128': 99,
          'attention_forward_kernel<bf16, 80': 20, 'attention_forward_kernel<fp16, 80': 20, 'attention_dq_kernel<': 5,
          'attention_dkv_kernel<': 5, 'attention_plain_dkv_kernel<': 7, 'layernorm_backward_kernel<': 122,
          'layernorm_backward_warps_kernel<': 33, 'flat_by_kernel<': 8}


def tool():
    named = os.environ.get('CUOBJDUMP')
    for path in [named] if named else ['cuobjdump', '/usr/local/cuda/bin/cuobjdump']:
        if shutil.which(path):
            return path
    sys.exit('sass: %s is not found. It comes with the CUDA Toolkit, or: pip install nvidia-cuda-cuobjdump, and '
             'CUOBJDUMP=.../nvidia/cu13/bin/cuobjdump' % (named or 'cuobjdump'))


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit('sass: %s ended with %d: %s' % (' '.join(command), done.returncode, done.stderr.strip()[:500]))
    return done.stdout


def kernels(cuobjdump, path):
    """Kernels of an object, as (target, name, resources, code); code is a list of (address, instruction)."""
    found, target, mangled = [], '', set()
    for line in output(cuobjdump, '-sass', path).splitlines():
        if match := re.match(r'\s*arch = (\S+)', line):
            target = match[1]
        elif match := re.search(r'Function : (\S+)', line):
            found.append((target, match[1], []))
            mangled.add(match[1])
        elif found and (match := re.match(r'\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;', line)):
            found[-1][2].append((int(match[1], 16), match[2]))
    names = sorted(mangled)
    plain = subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True, text=True).stdout.splitlines()
    plain = [re.sub(r'\((?!anonymous)\w+\)(?=\d)', '', p) for p in plain]            # (CrossEntropyForm)2: 2
    name_of = {m: re.sub(r'^void |\(.*$', '', p) for m, p in zip(names, plain)}
    resources, target = {}, ''
    for line in output(cuobjdump, '-res-usage', path).splitlines():
        if match := re.match(r'\s*arch = (\S+)', line):
            target = match[1]
        elif match := re.search(r'Function (\S+):', line):
            last = match[1]
        elif match := re.search(r'REG:(\d+) .*SHARED:(\d+)', line):
            resources[target, last] = int(match[1]), int(match[2])
    return [(t, name_of[m], resources.get((t, m), (0, 0)), code) for t, m, code in found]


def count(code, pattern):
    return sum(bool(re.match(r'(?:@!?U?P\d+ )?' + pattern, text)) for _, text in code)


def tensor_of(code):
    """Tensor instructions, in units of an HMMA: 4096 FLOP."""
    wide = sum(int(n) // 2 for _, text in code for n in re.findall(r'\bHGMMA\.64x(\d+)x16\.F32', text))
    return count(code, 'HMMA') + wide


def registers(operands):
    found = set()
    for number, wide in re.findall(r'\bR(\d+)(\.64)?', operands):
        found |= {int(number), int(number) + 1} if wide else {int(number)}
    return found


def not_in_flight(code):
    """Reads of 16 bytes, in the innermost loop that has some, whose result is used before its end: their addresses."""
    read = r'(?:@!?U?P\d+ )?LDG\.E\.128\S* R(\d+),'
    loops = []
    for end, text in code:
        match = re.search(r'\bBRA (0x[0-9a-f]+)', text)
        if match and int(match[1], 16) < end:
            loop = [(a, t) for a, t in code if int(match[1], 16) <= a <= end]
            if any(re.match(read, t) for _, t in loop):
                loops.append(loop)
    if not loops:
        return ['no loop reads 16 bytes at a time']
    loop, lost = min(loops, key=len), []
    for k, (address, text) in enumerate(loop):
        match = re.match(read, text)
        if not match:
            continue
        landing = set(range(int(match[1]), int(match[1]) + 4))
        for _, later in loop[k + 1:-24]:         # at the end it may be moved
            body = re.sub(r'^@!?U?P\d+ ', '', later).split(' ', 1)
            operands = body[1].split(',') if len(body) > 1 else []
            writes = not body[0].startswith(('ST', 'BRA', 'RED', 'ISETP', 'FSETP'))
            if landing & registers(','.join(operands[1:] if writes else operands)):
                lost.append('%#x' % address)
                break
            if writes and operands:
                landing -= registers(operands[0])
    return lost


READ_8 = r'(?:@!?U?P\d+ )?LDG\.E\.(64|128)\S* R(\d+),'     # nvcc cuts some reads of 16 bytes in two


def loops_of(code):
    """Loops that hold no other loop, each a list of (address, instruction)."""
    found = []
    for end, text in code:
        match = re.search(r'\bBRA (?:U?P\d+, )?(0x[0-9a-f]+)', text)
        if match and int(match[1], 16) < end:
            found.append((int(match[1], 16), end))
    inner = [f for f in found if not any(g != f and f[0] <= g[0] and g[1] <= f[1] for g in found)]
    return [[(a, t) for a, t in code if begin <= a <= end] for begin, end in inner]


def not_batched(code, most):
    """Loops in which fewer than `most` bytes are asked for, 8 or 16 at a time, before any is used: their addresses."""
    lost, loops = [], [x for x in loops_of(code) if any(re.match(READ_8, t) for _, t in x)]
    for loop in loops:
        landing, asked = set(), 0
        for _, text in loop:
            operands = re.sub(r'^@!?U?P\d+ ', '', text).split(' ', 1)[-1].split(',', 1)
            match = re.match(READ_8, text)
            if landing & registers(operands[-1] if match or len(operands) > 1 else operands[0]):
                break
            if match:
                asked += int(match[1]) // 8
                landing |= set(range(int(match[2]), int(match[2]) + int(match[1]) // 32))
        if asked < most:
            lost.append('%#x' % loop[0][0])
    return lost if loops else ['no loop reads 16 bytes at a time']


def neighbours(code):
    """Reads and writes of 16 bytes that the same thread does 16 bytes from another one: their addresses."""
    at, found = {}, []
    for address, text in code:
        match = re.match(r'(?:@!?U?P\d+ )?(LDG|STG)\.E\.128.*\[(R\d+)\.64(?:\+(-?0x[0-9a-f]+))?\]', text)
        if match:
            offset = int(match[3] or '0', 16)
            if {offset - 16, offset + 16} & at.setdefault((match[1], match[2]), set()):
                found.append('%#x' % address)
            at[match[1], match[2]].add(offset)
    return found


def predicted(name, regs, code):
    """A line of the second table and wavefronts for an HMMA, or None where no loop has tensor instructions."""
    spans = []
    for end, text in code:
        match = re.search(r'\bBRA (?:U?P\d+, )?(0x[0-9a-f]+)', text)
        if match and int(match[1], 16) < end:
            loop = [(a, t) for a, t in code if int(match[1], 16) <= a <= end]
            if tensor_of(loop):
                spans.append(loop)
    if not spans:
        return None
    loop = max(spans, key=tensor_of)
    warps = 4 if count(loop, 'HGMMA') else 1
    twice = 2 if 'dkv' in name and warps == 1 else 1               # with and without dropout: the code is there twice
    tensor, exponentials = tensor_of(loop), count(loop, r'MUFU\.EX2') // twice * warps
    plain = count(loop, r'LDS\.128') * 4 + count(loop, r'LDS\.64') * 2 + count(loop, r'LDS (?!.*RZ)')
    waves = 4 * count(loop, r'LDSM\S*\.4\b') + plain // twice + 4 * count(loop, 'LDGSTS')
    waves *= warps
    cycles = {'tensor cores': tensor / (1 if warps > 1 else MMA_SYNC), 'shared memory': waves, 'EX2': exponentials * 2}
    bound = max(cycles, key=cycles.get)
    groups = int(name.split(', ')[3]) if warps > 1 else 1          # warpgroups of a block
    blocks = 65536 // (128 * groups * ((regs + 7) // 8 * 8))
    line = '%6d %10d %5d %6d  %-13s %3.0f %%  %s' % (tensor, waves, exponentials, blocks, bound,
                                                  100 * tensor / cycles[bound], name)
    return line, waves / tensor


def main(arguments):
    if '-h' in arguments or '--help' in arguments:
        return print(__doc__.strip())
    pattern = None
    if arguments[:1] == ['--kernels'] and len(arguments) == 2:
        pattern, arguments = arguments[1], []
    if arguments:
        sys.exit('sass: options are --kernels PATTERN and --help, not %s' % ' '.join(arguments))
    objects = os.environ.get('SASS_OBJECTS', '').split() or sorted(glob.glob('build/cuda.*.o'))
    all_of = [k for o in objects for k in kernels(tool(), o)]
    lost, shown, attention, least = [], 0, [], {}
    print('regs local  shared tensor   lds   ldg (16 bytes)  stg  bar  target   kernel')
    for target, name, (regs, shared), code in sorted(all_of, key=lambda k: (k[1], k[0])):
        local = count(code, r'(LDL|STL)')
        tensor = count(code, 'HG?MMA')
        warpgroup = target == 'sm_90a' and any(name.startswith(s) for s in WARPGROUP)
        if warpgroup and not count(code, 'HGMMA'):
            lost.append('%s on %s has no tensor instructions of a warpgroup' % (name, target))
        hot = any(name.startswith(s) for s in HOT)
        allowed = max([most for s, most in SPILLS.items() if name.startswith(s)] + [0])
        if hot and 'dkv_wgmma' not in name:
            allowed = 0
        if local > allowed:
            lost.append('%s on %s has %d loads and stores of spilled registers' % (name, target, local))
        if not tensor and any(name.startswith(s) for s in TENSOR):
            lost.append('%s on %s has no tensor instructions' % (name, target))
        if any(name.startswith(s) for s in IN_FLIGHT) and (where := not_in_flight(code)):
            lost.append('%s on %s: the next row is waited for in the loop (%s)' % (name, target, ', '.join(where[:4])))
        clusters = int(re.match(r'sm_(\d+)', target)[1]) >= 90  # before, the form is a trap
        if any(name.startswith(s) for s in READ_ONCE) and (clusters or not name.endswith(' 2>')):
            if count(code, r'LDG\.\S*128') or not count(code, r'LDGSTS\S*\.128'):
                lost.append('%s on %s: the row is not copied into shared memory, or is read again' % (name, target))
        if any(name.startswith(s) for s in BATCHED) and (where := not_batched(code, 64)):
            lost.append('%s on %s: fewer than 64 bytes asked for at once (%s)' % (name, target, ', '.join(where)))
        if any(name.startswith(s) for s in FLAT) and (where := neighbours(code)):
            lost.append('%s on %s: a thread takes two neighbouring pieces (%s)' % (name, target, ', '.join(where[:4])))
        shown_here = target == 'sm_90a' and (warpgroup or any(name.startswith(s) for s in TENSOR))
        if shown_here and 'fp16' not in name and (found := predicted(name, regs, code)):
            attention.append(found[0])
            for kernel in WAVES:
                if name.startswith(kernel):
                    least[kernel] = min(found[1], least.get(kernel, found[1]))
        empty = target != 'sm_90a' and any(name.startswith(s) for s in WARPGROUP)
        if not empty and (pattern in name if pattern else hot):
            shown += 1
            print('%4d %5d %7d %6d %5d %5d %10d %4d %4d  %-7s  %s' % (
                regs, local, shared, tensor, count(code, r'LDSM?\b'), count(code, 'LDG'), count(code, r'LDG\S*\.128'),
                count(code, 'STG'), count(code, 'BAR'), target, name))
    if attention and not pattern:
        print('\npredicted, sm_90a, for a tile of a warp; per cent of the dense peak (dev/sass.py --help)')
        print('tensor wavefronts   EX2 blocks  bound        of peak kernel')
        print('\n'.join(attention) + '\n')
    for kernel, waves in least.items():
        if waves > WAVES[kernel]:
            lost.append('%s...> on sm_90a: %.2f wavefronts of shared memory for a tensor instruction, '
                        '%.2f are allowed' % (kernel, waves, WAVES[kernel]))
    if not shown:
        lost.append('no kernel is shown: %s' % (pattern or 'the hot ones have other names now'))
    for line in lost:
        print('sass: ' + line, file=sys.stderr)
    if not lost:
        print('%d kernels on all targets: no spills but those listed in dev/sass.py, next rows in flight, tensor cores '
              'in use, rows of logits read once, reads batched, few wavefronts for a tensor instruction, pieces of a '
              'warp side by side' % len(all_of))
    return sys.exit(1) if lost else None


if __name__ == '__main__':
    main(sys.argv[1:])
