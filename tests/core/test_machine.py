"""Free memory is what the machine has left, and what the groups around a process leave it."""

import pytest

from localpower.core import machine

FREE = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:    1000000 kB\n"}
V2 = {"proc/self/cgroup": "0::/box/inner\n"}
V1 = {"proc/self/cgroup": "5:cpu:/\n4:memory:/box\n0::/\n"}
CASES = {
    "nothing known": ({}, machine.UNKNOWN),
    "machine": (FREE, 1_000_000 << 10),
    "version 2": (
        FREE | V2 | {"sys/fs/cgroup/box/inner/memory.max": "5000\n",
                     "sys/fs/cgroup/box/inner/memory.current": "2000\n"}, 3000,
    ),
    "version 2, around": (
        FREE | V2 | {"sys/fs/cgroup/box/memory.max": "700\n",
                     "sys/fs/cgroup/box/memory.current": "200\n",
                     "sys/fs/cgroup/box/inner/memory.max": "max\n",
                     "sys/fs/cgroup/box/inner/memory.current": "200\n"}, 500,
    ),
    "version 2, root of a container": (
        FREE | {"sys/fs/cgroup/memory.max": "900", "sys/fs/cgroup/memory.current": "100"}, 800,
    ),
    "version 1": (
        FREE | V1 | {"sys/fs/cgroup/memory/box/memory.limit_in_bytes": "5000\n",
                     "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "4000\n"}, 1000,
    ),
    "version 1, no limit": (
        V1 | {"sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712\n",
              "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "4000\n"}, machine.UNKNOWN,
    ),
    "pages of files are taken back": (
        FREE | V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n",
                     "sys/fs/cgroup/memory/memory.usage_in_bytes": "4000\n",
                     "sys/fs/cgroup/memory/memory.stat": "cache 9\ninactive_file 3000\n"}, 4000,
    ),
    "used up": (
        FREE | V2 | {"sys/fs/cgroup/memory.max": "5", "sys/fs/cgroup/memory.current": "8"}, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "expected"), CASES.values(), ids=CASES)
def test_memory_is_what_the_tightest_limit_leaves(tmp_path, monkeypatch, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "SYSTEM", tmp_path)
    assert machine.available() == expected
    assert machine.cores() >= 1
