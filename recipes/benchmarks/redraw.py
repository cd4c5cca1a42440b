"""Write the tables and pictures of compiled.py, speedrun.py and table1.py again from their records, without measuring.

python recipes/benchmarks/redraw.py
"""

from pathlib import Path
from types import ModuleType

import compiled
import speedrun
import table1
from benchmark import BenchmarkArguments, run_benchmark

from vaswani_transformer.system.typed_json import Record


def redraw(name: str, record: type[Record], module: ModuleType) -> None:
    run_benchmark(
        name,
        BenchmarkArguments,
        lambda args: iter([record.load(Path(args.output, f"{name}.json"))]),
        module.as_markdown,
        module.plot,
    )


def main() -> None:
    redraw("compiled", compiled.CompiledRecord, compiled)
    redraw("speedrun", speedrun.SpeedrunRecord, speedrun)
    redraw("table1", table1.Table1Record, table1)


if __name__ == "__main__":
    main()
