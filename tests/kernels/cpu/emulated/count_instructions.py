"""Counts the instructions of the products' inner loops per weight, from the disassembly of a set's library.

    python -m tests.kernels.cpu.emulated.count_instructions avx2 neon

For every tile of each set: rows of x, instructions per weight times the float32 lanes of a vector, so that sets of
different widths compare, and the ratio to the first set. Instructions, not time: no processor is measured.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.kernels.cpu.emulated.sets import SETS, library_of

LANES = {"baseline": 4, "avx2": 8, "avx512": 16, "avx512bf16": 16, "neon": 4, "neonbf16": 4}
OBJDUMP = {"x86_64": "objdump", "aarch64": "aarch64-linux-gnu-objdump"}
TILES = {"vector_tile": 0, "tile": 1, "quantized_tile": 1}  # which integer template argument is the rows of x
# Multiply-adds of one instruction per vector: float32 products, or products of several narrow elements.
PRODUCTS = (
    (re.compile(r"v?(fmadd|fmla|fnmadd|mul)(\d{3})?ps"), 1),
    (re.compile(r"vdpbf16ps"), 2),
    (re.compile(r"bfdot"), 2),
    (re.compile(r"bfmlal[bt]"), 1),
    (re.compile(r"bfmmla"), 4),
    (re.compile(r"[us]dot"), 4),
)
WIDTHS = {"zmm": 16, "ymm": 8, "xmm": 4}
INSTRUCTION = re.compile(r"\s+([0-9a-f]+):\t(\S+)\s*(.*)")
FUNCTION = re.compile(r"[0-9a-f]+ <(.*)>:")
TARGET = re.compile(r"(?:0x)?([0-9a-f]+) <")


class Instruction(NamedTuple):
    address: int
    name: str
    operands: str

    def products(self) -> int:
        """Multiply-adds of float32 lanes; 0 of anything else."""
        if self.name in ("fmla", "fmul"):
            return 4 if ".4s" in self.operands else 0
        for pattern, factor in PRODUCTS:
            if pattern.fullmatch(self.name):
                return factor * next((lanes for name, lanes in WIDTHS.items() if name in self.operands), 4)
        return 0

    def jump(self) -> int | None:
        """Where a jump goes; None for another instruction."""
        found = TARGET.search(self.operands) if self.name[0] in "jbct" else None
        return int(found[1], 16) if found and not self.name.startswith(("call", "bl")) else None


class Tile(NamedTuple):
    """A tile's function: what it multiplies, rows of x, and the inner loop's instructions and multiply-adds."""

    kind: str
    rows: int
    instructions: int
    products: int

    @property
    def per_weight(self) -> float:
        return self.instructions * self.rows / self.products


def functions(library: str, architecture: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Name and instructions of each function that may be a tile."""
    command = [OBJDUMP[architecture], "-d", "-C", "--no-show-raw-insn", library]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    name, body = "", list[Instruction]()
    for line in listing.splitlines():
        header = FUNCTION.match(line)
        if header:
            yield name, body
            name, body = header[1], []
        elif found := INSTRUCTION.match(line):
            body.append(Instruction(int(found[1], 16), found[2], found[3]))
    yield name, body


def inner_loop(body: list[Instruction]) -> list[Instruction]:
    """The innermost loop with most multiply-adds."""
    loops = [
        (target, one.address)
        for one in body
        if (target := one.jump()) is not None and body[0].address <= target <= one.address
    ]
    innermost = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    bodies = [[one for one in body if a <= one.address <= b] for a, b in innermost]
    return max(bodies, key=lambda loop: sum(one.products() for one in loop), default=[])


def tiles(name: str) -> dict[tuple[str, int], Tile]:
    """The cheapest tile of each kind and number of rows."""
    best: dict[tuple[str, int], Tile] = {}
    one = SETS[name]
    for function, body in functions(str(library_of(one)), one.isa.architecture):
        found = re.search(r"(\w+)<(.*)>\(", function)
        if found is None or found[1] not in TILES:
            continue
        arguments = [argument.strip() for argument in found[2].split(",")]
        numbers = [int(argument) for argument in arguments if argument.isdigit()]
        types = re.sub(r"\w+::|\b\d+\b|\w*(true|false)|[^\w<> ]", "", found[2]).split()
        loop = inner_loop(body)
        products = sum(each.products() for each in loop)
        if not products:
            continue
        tile = Tile(" ".join((found[1], *types)), numbers[TILES[found[1]]], len(loop), products)
        known = best.get(tile[:2])
        if known is None or tile.per_weight < known.per_weight:
            best[tile[:2]] = tile
    return best


def main(names: list[str]) -> None:
    of = {name: tiles(name) for name in names}
    lost = TILES.keys() - {kind.split()[0] for found in of.values() for kind, _ in found}
    if lost:
        sys.exit(f"no function of these names multiplies: {', '.join(sorted(lost))}; TILES must follow the sources")
    for key in sorted({key for found in of.values() for key in found}):
        costs = {name: found[key].per_weight * LANES[name] for name, found in of.items() if key in found}
        first = costs.get(names[0])
        shown = "  ".join(
            f"{name} {cost:6.2f}" + (f" ({cost / first:4.2f}x)" if first and name != names[0] else "")
            for name, cost in costs.items()
        )
        print(f"{key[0]:40} rows {key[1]:2}  {shown}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["avx2", "neon", "neonbf16"])
