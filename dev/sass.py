#!/usr/bin/env python3
"""What nvcc made of the CUDA kernels that a training step runs, read from their machine code (SASS). Nothing is
measured. Ends with 1 if a property is lost that speed depends on:

  no spills      no kernel but those of SPILLS keeps registers in local memory
  in flight      what is read for the next row of a loop is not touched before the loop's end (IN_FLIGHT)
  tensor cores   kernels of TENSOR have HMMA instructions

    make sass                            all hot kernels
    make sass ARGS="--kernels PATTERN"   those whose name contains PATTERN, hot or not

Needs cuobjdump, of the CUDA Toolkit or from PyPI (nvidia-cuda-cuobjdump); CUOBJDUMP names another one.
Columns: registers a thread; local: loads and stores of spilled registers; shared: bytes of static shared memory;
tensor: HMMA; lds: reads of shared memory (LDS, LDSM); ldg: reads of global memory, and how many are of 16 bytes;
stg: writes; bar: barriers. All are counted in the code, not in what runs.
"""
import os
import re
import shutil
import subprocess
import sys

HOT = ['layernorm_forward_kernel<bf16, 8, 1>', 'layernorm_backward_warps_kernel<bf16, 3>',
       'layernorm_backward_warps_kernel<bf16, 4>', 'layernorm_backward_kernel<bf16, 8, 1>',
       'embedding_wte_kernel<bf16, 8>', 'embedding_wpe_kernel<bf16, 8>', 'cross_entropy_backward_kernel<bf16, 8>',
       'adamw_kernel<bf16, true, 8>', 'accumulate_kernel<bf16, 8>', 'norm_kernel<8>',
       'attention_forward_kernel<bf16, 64', 'attention_dq_kernel<bf16, 64', 'attention_dkv_kernel<bf16, 64',
       'attention_forward_kernel<bf16, 128', 'attention_dq_kernel<bf16, 128', 'attention_dkv_kernel<bf16, 128']
IN_FLIGHT = ['layernorm_backward_warps_kernel<bf16, ', 'layernorm_backward_warps_kernel<fp16, ',
             'layernorm_backward_kernel<bf16, 8, 1>', 'layernorm_backward_kernel<fp16, 8, 1>']
TENSOR = ['attention_forward_kernel<bf16', 'attention_dq_kernel<bf16', 'attention_dkv_kernel<bf16']
# Rows beyond 8192 columns, and fp32 attention of the plain kind on one target: no preset reaches them.
SPILLS = ['layernorm_backward_kernel<float, 8, 4>', 'layernorm_backward_kernel<fp16, 8, 4>',
          'attention_plain_dkv_kernel<float, 64>']


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
        for _, later in loop[k + 1:]:
            body = re.sub(r'^@!?U?P\d+ ', '', later).split(' ', 1)
            operands = body[1].split(',') if len(body) > 1 else []
            writes = not body[0].startswith(('ST', 'BRA', 'RED', 'ISETP', 'FSETP'))
            if landing & registers(','.join(operands[1:] if writes else operands)):
                lost.append('%#x' % address)
                break
            if writes and operands:
                landing -= registers(operands[0])
    return lost


def main(arguments):
    if '-h' in arguments or '--help' in arguments:
        return print(__doc__.strip())
    pattern = None
    if arguments[:1] == ['--kernels'] and len(arguments) == 2:
        pattern, arguments = arguments[1], []
    if arguments:
        sys.exit('sass: options are --kernels PATTERN and --help, not %s' % ' '.join(arguments))
    all_of = kernels(tool(), os.environ.get('SASS_OBJECT', 'build/cuda.o'))
    lost, shown = [], 0
    print('regs local  shared tensor   lds   ldg (16 bytes)  stg  bar  target   kernel')
    for target, name, (regs, shared), code in sorted(all_of, key=lambda k: (k[1], k[0])):
        local = count(code, r'(LDL|STL)')
        tensor = count(code, 'HMMA')
        if local and not any(name.startswith(s) for s in SPILLS):
            lost.append('%s on %s has %d loads and stores of spilled registers' % (name, target, local))
        if not tensor and any(name.startswith(s) for s in TENSOR):
            lost.append('%s on %s has no tensor instructions' % (name, target))
        if any(name.startswith(s) for s in IN_FLIGHT) and (where := not_in_flight(code)):
            lost.append('%s on %s: the next row is waited for in the loop (%s)' % (name, target, ', '.join(where[:4])))
        if pattern in name if pattern else any(name.startswith(s) for s in HOT):
            shown += 1
            print('%4d %5d %7d %6d %5d %5d %10d %4d %4d  %-7s  %s' % (
                regs, local, shared, tensor, count(code, r'LDSM?\b'), count(code, 'LDG'), count(code, r'LDG\S*\.128'),
                count(code, 'STG'), count(code, 'BAR'), target, name))
    if not shown:
        lost.append('no kernel is shown: %s' % (pattern or 'the hot ones have other names now'))
    for line in lost:
        print('sass: ' + line, file=sys.stderr)
    if not lost:
        print('%d kernels on all targets: no spills but those listed in dev/sass.py, next rows in flight, tensor cores '
              'in use' % len(all_of))
    return sys.exit(1) if lost else None


if __name__ == '__main__':
    main(sys.argv[1:])
