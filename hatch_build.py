"""Compile the kernels while the package is built, where there is a C compiler."""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/localpower/worker/kernels.c")
LIBRARY = SOURCE.with_name("libkernels.so")  # not a name that Python would import
FLAGS = ["-O3", "-fPIC", "-shared", "-Wno-psabi"]


class CustomBuildHook(BuildHookInterface):
    """Put ``libkernels.so`` beside its source; without a compiler, numpy and scipy do its work."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel as one for this kind of machine if that worked."""
        if self.target_name != "wheel":
            return
        target = Path(self.root) / LIBRARY
        compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or "gcc"]
        try:
            subprocess.run(
                [*compiler, *FLAGS, "-o", str(target), str(Path(self.root) / SOURCE)],
                check=True,
                capture_output=True,
                timeout=120,
            )
        except (OSError, subprocess.SubprocessError) as error:
            target.unlink(missing_ok=True)
            self.app.display_warning(f"the kernels were not compiled ({error}); numpy will do")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
