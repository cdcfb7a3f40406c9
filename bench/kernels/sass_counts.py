#!/usr/bin/env python3
"""Count the machine instructions (SASS) of CUDA kernels: registers, stack, and what each loop executes.

    bench/kernels/sass_counts.py [--kernel GLOB] [--arch sm_90] [--cuobjdump PROGRAM] FILE...

Each FILE is an object file or a program with kernels. For each kernel a line reports its registers, the bytes of its stack
(register spills, if the kernel has no arrays there) and its instructions by kind. A line follows for each loop, indented below
the loop around it; its counts leave out the loops inside it. Loops are natural loops: a branch back to a block through which
every path to the branch leads. Blocks that only a diverged warp executes (BRA.DIV) are not in a loop's counts.

Kinds: `load` and `store` of global memory, with the bytes that a thread moves by them, `shared` memory, `atomic` operations of
either, `local` memory (the stack), and `other`.

Example:
    cmake --preset cuda -B build/cuda90 -DSPARSESYNC_CUDA_ARCHITECTURES=90
    cmake --build build/cuda90 --target sparsesync_kernels
    bench/kernels/sass_counts.py --kernel 'take*' build/cuda90/kernels/CMakeFiles/sparsesync_kernels.dir/cuda/magnitude.cu.o
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

FUNCTION = re.compile(r"^\s*Function\s*:\s*(\S+)\s*$")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")
RESOURCES = re.compile(r"^\s*Function\s+(\S+):\s*$")
RESOURCE = re.compile(r"\b(REG|STACK):(\d+)")
TARGET = re.compile(r"\b0x([0-9a-f]+)\s*$")
WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
KINDS = ["load", "store", "shared", "atomic", "local", "other"]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of SASS."""

    address: int
    opcode: str  # with its modifiers: LDG.E.128
    predicate: str  # empty for an unconditional instruction
    target: int | None  # address that it branches to

    @property
    def name(self) -> str:
        return self.opcode.split(".")[0]

    @property
    def kind(self) -> str:
        if self.name in ("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDS"):
            return "atomic"
        if self.name in ("LDG", "LD"):
            return "load"
        if self.name in ("STG", "ST"):
            return "store"
        if self.name in ("LDS", "STS", "LDSM", "STSM"):
            return "shared"
        return "local" if self.name in ("LDL", "STL") else "other"

    @property
    def bytes(self) -> int:
        """Bytes of memory that a thread moves by a load or store."""
        return next((WIDTHS[part] for part in self.opcode.split(".") if part in WIDTHS), 4)

    @property
    def ends_block(self) -> bool:
        return self.name in ("BRA", "BRX", "JMP", "JMX", "EXIT", "RET")

    @property
    def is_conditional(self) -> bool:
        # A branch may also be conditional by its operands, as BRA.DIV is; only a plain one is not.
        return self.predicate != "" or (self.name == "BRA" and self.opcode not in ("BRA", "BRA.U"))


@dataclasses.dataclass(frozen=True)
class Counts:
    """Instructions by kind, and the bytes that a thread loads and stores by them."""

    kinds: dict[str, int]
    loaded: int
    stored: int

    @property
    def all(self) -> int:
        return sum(self.kinds.values())


@dataclasses.dataclass(frozen=True)
class Loop:
    """A natural loop."""

    begin: int  # address of its first instruction
    end: int  # address of its last branch back
    depth: int  # loops around it
    counts: Counts  # without inner loops


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel and its loops, outer ones before inner ones."""

    name: str
    registers: int
    stack: int  # bytes
    counts: Counts
    loops: list[Loop]


def count(instructions: Iterable[Instruction]) -> Counts:
    """Counts instructions by kind; NOPs are padding."""
    kinds = dict.fromkeys(KINDS, 0)
    moved = {"load": 0, "store": 0}
    for each in instructions:
        if each.name == "NOP":
            continue
        kinds[each.kind] += 1
        if each.kind in moved:
            moved[each.kind] += each.bytes
    return Counts(kinds, moved["load"], moved["store"])


def parse_instructions(text: str) -> dict[str, list[Instruction]]:
    """Parses the output of `cuobjdump -sass`. Returns {mangled name: instructions}."""
    functions: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    for line in text.splitlines():
        if function := FUNCTION.match(line):
            current = functions.setdefault(function.group(1), [])
        elif current is not None and (found := INSTRUCTION.match(line)):
            address, predicate, opcode, operands = found.groups()
            name = opcode.split(".")[0]
            target = TARGET.search(operands.strip()) if name in ("BRA", "JMP") else None
            made = Instruction(int(address, 16), opcode, predicate or "", int(target.group(1), 16) if target else None)
            if made.target != made.address:  # padding after the last instruction begins with a branch to itself
                current.append(made)
    return functions


def parse_resources(text: str) -> dict[str, dict[str, int]]:
    """Parses the output of `cuobjdump -res-usage`. Returns {mangled name: {"REG": registers, "STACK": bytes}}."""
    resources: dict[str, dict[str, int]] = {}
    name = ""
    for line in text.splitlines():
        if function := RESOURCES.match(line):
            name = function.group(1)
        elif name and (found := RESOURCE.findall(line)):
            resources[name] = {key: int(value) for key, value in found}
            name = ""
    return resources


@dataclasses.dataclass
class Block:
    """Instructions that execute one after another."""

    instructions: list[Instruction]
    successors: list[int]
    for_diverged: bool = False  # only diverged warps execute it


def blocks_of(instructions: list[Instruction]) -> list[Block]:
    """Splits a function into blocks."""
    starts = {instructions[0].address} | {each.target for each in instructions if each.target is not None}
    starts |= {after.address for each, after in zip(instructions, instructions[1:], strict=False) if each.ends_block}
    blocks: list[Block] = []
    for each in instructions:
        if each.address in starts:
            blocks.append(Block([], []))
        blocks[-1].instructions.append(each)
    number_of = {block.instructions[0].address: number for number, block in enumerate(blocks)}
    for number, block in enumerate(blocks):
        last = block.instructions[-1]
        if number + 1 < len(blocks) and (not last.ends_block or last.is_conditional):
            block.successors.append(number + 1)
        if last.target in number_of and not last.opcode.startswith("BRA.DIV"):
            block.successors.append(number_of[last.target])
    return blocks


def predecessors_of(blocks: list[Block]) -> list[list[int]]:
    predecessors: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        for successor in block.successors:
            predecessors[successor].append(number)
    return predecessors


def reachable(blocks: list[Block], indirect: bool) -> set[int]:
    """Returns the blocks that are reachable from the first one. An indirect branch (BRX) can also reach every block that no branch
    names.
    """
    predecessors = predecessors_of(blocks)
    roots = [0]
    if indirect:
        diverged = {each.target for block in blocks for each in block.instructions if each.opcode.startswith("BRA.DIV")}
        roots += [n for n, block in enumerate(blocks) if n and not predecessors[n] and block.instructions[0].address not in diverged]
    found: set[int] = set()
    while roots:
        number = roots.pop()
        if number not in found:
            found.add(number)
            roots += blocks[number].successors
    return found


def dominators_of(blocks: list[Block], live: set[int]) -> list[int]:
    """Returns for each block the blocks on every path to it, itself included, as bits of a number."""
    predecessors = [[p for p in before if p in live] for before in predecessors_of(blocks)]
    everything = sum(1 << number for number in live)
    dominators = [everything if predecessors[number] and number else 1 << number for number in range(len(blocks))]
    changed = True
    while changed:
        changed = False
        for number in sorted(live):
            if number == 0 or not predecessors[number]:
                continue
            common = everything
            for predecessor in predecessors[number]:
                common &= dominators[predecessor]
            common |= 1 << number
            if common != dominators[number]:
                dominators[number] = common
                changed = True
    return dominators


def loops_of(instructions: list[Instruction]) -> list[Loop]:
    """Returns the natural loops of a function, outer ones before inner ones."""
    blocks = blocks_of(instructions)
    live = reachable(blocks, any(each.name in ("BRX", "JMX") for each in instructions))
    dominators = dominators_of(blocks, live)
    predecessors = predecessors_of(blocks)
    bodies: dict[int, set[int]] = {}  # by the first block of the loop
    for number in live:
        for header in blocks[number].successors:
            if dominators[number] >> header & 1:
                body = bodies.setdefault(header, {header})
                waiting = [number]
                while waiting:
                    each = waiting.pop()
                    if each not in body and each in live:
                        body.add(each)
                        waiting += predecessors[each]
    loops = []
    for header, body in bodies.items():
        inner = set().union(*(other for begin, other in bodies.items() if begin in body and begin != header and other < body))
        own = [each for number in sorted(body - inner) for each in blocks[number].instructions]
        end = max(blocks[number].instructions[-1].address for number in body if header in blocks[number].successors)
        depth = sum(1 for begin, other in bodies.items() if begin != header and body < other)
        loops.append(Loop(blocks[header].instructions[0].address, end, depth, count(own)))
    return sorted(loops, key=lambda loop: (loop.begin, loop.depth))


def kernels_of(sass: str, resources: str) -> list[Kernel]:
    """Reads the kernels from the outputs of `cuobjdump -sass` and `cuobjdump -res-usage`, in their order."""
    used = parse_resources(resources)
    return [
        Kernel(name, used.get(name, {}).get("REG", 0), used.get(name, {}).get("STACK", 0), count(instructions), loops_of(instructions))
        for name, instructions in parse_instructions(sass).items()
        if instructions
    ]


def short_names(mangled: list[str]) -> list[str]:
    """Returns demangled names of kernels without namespaces and parameters."""
    filt = shutil.which("c++filt")
    if filt is None or not mangled:
        return mangled
    done = subprocess.run([filt], input="\n".join(mangled), capture_output=True, text=True, check=True)
    names = []
    for name in done.stdout.splitlines():
        text = re.sub(r"\(anonymous namespace\)::|sparsesync::|cuda::|detail::", "", name)
        text = re.sub(r"^void ", "", text)
        # The first parenthesis outside <> begins the parameters.
        depth = 0
        for at, character in enumerate(text):
            depth += {"<": 1, ">": -1}.get(character, 0)
            if character == "(" and depth == 0:
                text = text[:at]
                break
        names.append(text)
    return names


def find_cuobjdump() -> tuple[str, str]:
    """Returns the program and a folder with nvdisasm, which it needs. Searches PATH, CUDA, and Triton beside PyTorch."""
    root = Path(__file__).resolve().parents[2]
    folders = [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep) if each] + [Path("/usr/local/cuda/bin")]
    folders += sorted(root.glob(".venv/lib/python3*/site-packages/triton/backends/nvidia/bin"))
    for folder in folders:
        if os.access(folder / "cuobjdump", os.X_OK):
            return str(folder / "cuobjdump"), str(folder)
    sys.exit("sass_counts: cuobjdump not found in PATH, /usr/local/cuda/bin or .venv; pass --cuobjdump PROGRAM")


def dump(program: tuple[str, str], arch: str, option: str, file: Path) -> str:
    """Returns the output of cuobjdump for one file."""
    environment = os.environ | {"PATH": os.pathsep.join([program[1], os.environ.get("PATH", "")])}
    command = [program[0], "-arch", arch, option, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"sass_counts: {' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def line(title: str, counts: Counts, before: str = "") -> str:
    """Returns a row of the table."""
    kinds = "".join(f"{counts.kinds[kind]:>7}" for kind in KINDS)
    return f"{title:<34}{before:<13}{counts.all:>7}{kinds}{counts.loaded:>8}{counts.stored:>8}"


def table(kernels: list[tuple[str, Kernel]]) -> str:
    """Returns for each kernel its name, a row of all its instructions, and a row for each of its loops."""
    kinds = "".join(f"{kind:>7}" for kind in KINDS)
    lines = [f"{'':<34}{'regs  stack':<13}{'all':>7}{kinds}{'loaded':>8}{'stored':>8}"]
    for name, kernel in kernels:
        lines += [name, line("  kernel", kernel.counts, f"{kernel.registers:>4}{kernel.stack:>7}")]
        lines += [line(f"{'  ' * (loop.depth + 2)}loop {loop.begin:#x}-{loop.end:#x}", loop.counts) for loop in kernel.loops]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="*", metavar="GLOB", help="only kernels whose names match (default: all)")
    parser.add_argument("--arch", default="sm_90", help="default: %(default)s")
    parser.add_argument("--cuobjdump", metavar="PROGRAM", help="default: the first of PATH, /usr/local/cuda/bin, .venv")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    given = parser.parse_args()
    program = (given.cuobjdump, str(Path(given.cuobjdump).parent)) if given.cuobjdump else find_cuobjdump()
    kernels: list[Kernel] = []
    for file in given.files:
        kernels += kernels_of(dump(program, given.arch, "-sass", file), dump(program, given.arch, "-res-usage", file))
    named = zip(short_names([kernel.name for kernel in kernels]), kernels, strict=True)
    chosen = [(name, kernel) for name, kernel in named if fnmatch.fnmatchcase(name, given.kernel)]
    if not chosen:
        sys.exit(f"sass_counts: no kernel of {given.arch} matches '{given.kernel}'")
    print(table(chosen))


if __name__ == "__main__":
    main()
