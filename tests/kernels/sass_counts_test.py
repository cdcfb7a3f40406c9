"""Tests bench/kernels/sass_counts.py on recorded output of cuobjdump: instructions by kind, and nested loops."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))
PROGRAM = ROOT / "bench/kernels/sass_counts.py"
SPECIFICATION = importlib.util.spec_from_file_location("sass_counts", PROGRAM)
sass_counts = importlib.util.module_from_spec(SPECIFICATION)
sys.modules["sass_counts"] = sass_counts  # dataclasses look up their module here
SPECIFICATION.loader.exec_module(sass_counts)

# Output of cuobjdump 13, shortened. The first kernel waits for a point in time. The second one has a nested loop; a diverged warp leaves by
# BRA.DIV for code after EXIT, whose branch back (0xe0) closes no loop. A NOP is the target of a branch.
SASS = """
Fatbin elf code:
================
arch = sm_90

	code for sm_90
	.target	sm_90

		Function : _ZN4test4spinEm
	.headerflags	@"EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                         /* 0x00000a00ff017b82 */
                                                                                  /* 0x000fe20000000800 */
        /*0010*/                   CS2R R2, SR_GLOBALTIMERLO ;                    /* 0x0000000000027805 */
        /*0020*/                   IADD3 R0, P0, -R2, R4, RZ ;                    /* 0x0000000402007210 */
        /*0030*/              @!P0 BRA 0x20 ;                                     /* 0xfffffffc00e88947 */
        /*0040*/                   EXIT ;                                         /* 0x000000000000794d */
        /*0050*/                   BRA 0x50;                                      /* 0xfffffffc00fc7947 */
        /*0060*/                   NOP;                                           /* 0x0000000000007918 */
		..........


		Function : _ZN4test4sumsIfEEvPf
        /*0000*/                   LDC R1, c[0x0][0x28] ;                         /* 0x0 */
        /*0010*/                   BSSY B0, 0xb0 ;                                /* 0x0 */
        /*0020*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;      /* 0x0 */
        /*0030*/                   LDG.E.U16 R8, desc[UR4][R2.64+0x10] ;          /* 0x0 */
        /*0040*/                   LDS R9, [R8] ;                                 /* 0x0 */
        /*0050*/                   ATOMS.ADD RZ, [R9], R4 ;                       /* 0x0 */
        /*0060*/               @P1 BRA 0x40 ;                                     /* 0x0 */
        /*0070*/                   BRA.DIV UR4, 0xd0 ;                            /* 0x0 */
        /*0078*/                   BRA 0x80 ;                                     /* 0x0 */
        /*0080*/                   NOP ;                                          /* 0x0 */
        /*0090*/              @!P2 STG.E.64 desc[UR4][R2.64], R8 ;                /* 0x0 */
        /*00a0*/               @P0 BRA 0x20 ;                                     /* 0x0 */
        /*00b0*/               @P3 REDG.E.ADD.64.STRONG.GPU desc[UR4][R2.64], R4 ; /* 0x0 */
        /*00c0*/                   EXIT ;                                         /* 0x0 */
        /*00d0*/                   STL [R1], R4 ;                                 /* 0x0 */
        /*00e0*/                   BRA 0x80 ;                                     /* 0x0 */
        /*00f0*/                   BRA 0xf0;                                      /* 0x0 */
"""
RESOURCES = """
Resource usage:
 Common:
  GLOBAL:0
 Function _ZN4test4spinEm:
  REG:8 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN4test4sumsIfEEvPf:
  REG:40 STACK:24 SHARED:1024 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def counted(counts):
    """Returns the instruction kinds that occur, and the bytes."""
    return {kind: number for kind, number in counts.kinds.items() if number}, counts.loaded, counts.stored


def test_registers_and_all_instructions():
    spin, sums = sass_counts.kernels_of(SASS, RESOURCES)
    assert (spin.name, spin.registers, spin.stack) == ("_ZN4test4spinEm", 8, 0)
    assert counted(spin.counts) == ({"other": 5}, 0, 0)
    assert (sums.registers, sums.stack) == (40, 24)
    expected = {"load": 2, "store": 1, "shared": 1, "atomic": 2, "local": 1, "other": 8}
    assert counted(sums.counts) == (expected, 18, 8)
    assert sums.counts.all == 15


def test_loops():
    spin, sums = sass_counts.kernels_of(SASS, RESOURCES)
    assert [(loop.begin, loop.end, loop.depth) for loop in spin.loops] == [(0x20, 0x30, 0)]
    assert [(loop.begin, loop.end, loop.depth) for loop in sums.loops] == [(0x20, 0xA0, 0), (0x40, 0x60, 1)]
    outer, inner = (counted(loop.counts) for loop in sums.loops)
    assert outer == ({"load": 2, "store": 1, "other": 3}, 18, 8)  # without the inner loop, padding and the diverged warp
    assert inner == ({"shared": 1, "atomic": 1, "other": 1}, 0, 0)


def test_table_has_a_row_for_each_loop():
    _, sums = sass_counts.kernels_of(SASS, RESOURCES)
    lines = sass_counts.table([("sums<float>", sums)]).splitlines()
    assert [line.split()[0] for line in lines] == ["regs", "sums<float>", "kernel", "loop", "loop"]
    assert lines[2].split() == ["kernel", "40", "24", "15", "2", "1", "1", "2", "1", "8", "18", "8"]
    assert lines[4].split() == ["loop", "0x40-0x60", "3", "0", "0", "1", "1", "0", "1", "0", "0"]


def run(tmp_path, *arguments):
    """Runs the program with a cuobjdump that prints the recorded text for file.o and fails for other files."""
    for option, text in {"-sass": SASS, "-res-usage": RESOURCES}.items():
        (tmp_path / option).write_text(text, encoding="utf-8")
    program = tmp_path / "cuobjdump"
    program.write_text(
        f'#!/bin/sh\n[ "$1 $2 $4" = "-arch sm_90 file.o" ] || {{ echo "no such file: $4" >&2; exit 1; }}\ncat "{tmp_path}/$3"\n'
    )
    program.chmod(0o755)
    command = [sys.executable, PROGRAM, "--cuobjdump", program, *arguments]
    return subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))


def test_chosen_kernels(tmp_path):
    done = run(tmp_path, "--kernel", "*sums*", "file.o")
    assert done.returncode == 0, done.stderr
    assert "sums" in done.stdout and "spin" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--kernel", "gone*", "file.o"], "no kernel of sm_90 matches 'gone*'"), (["else.o"], "no such file: else.o")],
)
def test_refusals(tmp_path, arguments, said):
    done = run(tmp_path, *arguments)
    assert done.returncode == 1 and said in done.stderr
