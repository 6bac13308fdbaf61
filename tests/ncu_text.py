"""What ncu writes: the names of its metrics, and its table of kernels, as NVIDIA's manual of its command line describes them."""

from __future__ import annotations

import csv
import io

from pullback.profiling import ncu

SASS = "sm__sass_thread_inst_executed_op_"
ARITHMETIC = [f"{SASS}{kind}{operation}_pred_on" for kind in "fdh" for operation in ("add", "mul", "fma")]
QUERY = """Device NVIDIA H200 (GH100)

-------------------------------- ----------- ------- ------------------------------------------------------------
Metric Name                      Metric Type Unit    Metric Description
-------------------------------- ----------- ------- ------------------------------------------------------------
dram__bytes_read                 Counter     byte    # of bytes read from DRAM
dram__bytes_write                Counter     byte    # of bytes written to DRAM
gpu__time_duration               Counter     ns      incremental duration in nanoseconds; isolated measurement is
                                                     same as gpu__time_active
lts__t_bytes                     Counter     byte    # of bytes requested for all operations
sm__inst_executed_pipe_tensor    Counter     inst    # of warp instructions executed by tensor pipe
""" + "".join([f"{name} Counter inst # of thread instructions executed where all predicates were true\n" for name in ARITHMETIC])
ROLES = ncu.roles_of(QUERY)
PLACES = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"]
COLUMNS = [*PLACES, "Block Size", "Grid Size", "Device", "CC"]
UNITS = {"dram": "byte", "lts_": "byte", "gpu_": "ns", "sm__": "inst"}
METRICS = sorted([f"{name}.sum" for way in ROLES.values() for name in way])


def table(*kernels: tuple[str, dict[str, str]], units: dict[str, str] = UNITS) -> str:
    """What `ncu --csv --page raw` writes of kernels: their names, and the metrics that are not 0."""
    out = io.StringIO()
    write = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow
    write([*COLUMNS, *METRICS])
    write([*[""] * len(COLUMNS), *[units[name[:4]] for name in METRICS]])
    for i, (name, values) in enumerate(kernels):
        place = [str(i), "4242", "python3.12", "127.0.0.1", name, "1", "13", "(256, 1, 1)", "(64, 1, 1)", "0", "9.0"]
        write([*place, *[values.get(metric, "0") for metric in METRICS]])
    log = ["==PROF== Connected to process 4242 (/usr/bin/python3.12)"]
    log += [f'==PROF== Profiling "{name[:20]}" - {i}: 0%....50%....100% - 9 passes' for i, (name, _) in enumerate(kernels)]
    return "\n".join([*log, "==PROF== Disconnected from process 4242", out.getvalue()])
