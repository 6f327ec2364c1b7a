"""The package as a whole: what importing it needs, and what it says where an extra is missing."""

import subprocess
import sys

import numpy as np
import pytest

import localpower as lp


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_import_needs_neither_scikit_learn_nor_matplotlib_nor_scipys_slow_parts():
    code = "import sys, localpower; print([m for m in {names} if m in sys.modules])"
    names = ("sklearn", "matplotlib", "pandas", "scipy.sparse.linalg", "multiprocessing")
    assert python(code.format(names=names)).stdout.strip() == "[]"


def test_a_missing_extra_is_named():
    code = "import sys; sys.modules['sklearn'] = None; import localpower as lp; lp.PCA"
    error = python(code).stderr
    assert "MissingExtra: localpower.PCA needs an extra: pip install 'localpower[sklearn]'" in error
    assert issubclass(lp.MissingExtra, ImportError)


def test_everything_works_without_extras():
    code = (
        "import sys; sys.modules['sklearn'] = sys.modules['matplotlib'] = None\n"
        "import numpy as np, localpower as lp\n"
        "print(lp.pca(np.eye(6), 2, engine='processes:2', rng=0).components.shape)"
    )
    out = python(code)
    assert out.stdout.strip() == "(2, 6)", out.stderr


def test_all_public_names_exist_and_are_documented():
    for name in lp.__all__:
        assert getattr(lp, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lp.nothing


def test_every_task_and_reply_can_be_sent():
    """The list of what a data holder can be asked is the list of what the wire knows."""
    from localpower.worker import tasks, wire

    concrete = [
        kind
        for kind in vars(tasks).values()
        if isinstance(kind, type)
        and kind.__module__ == tasks.__name__
        and kind not in (tasks.Task, tasks.Scatter)
    ]
    assert len(concrete) > 10
    assert all(wire.MESSAGES.get(kind.__name__) is kind for kind in concrete)


@pytest.mark.parametrize("name", ["threads", "processes:1"])
def test_blas_threads_are_restored_after_overlapping_runs(name):
    from threadpoolctl import threadpool_info, threadpool_limits

    def threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        first, second = lp.connect(name), lp.connect(name)
        lp.svd(np.eye(4), 1, engine=first)
        lp.svd(np.eye(4), 1, engine=second)
        assert threads() == {1}
        first.close()
        assert threads() == {1}
        second.close()
        assert threads() == before


def test_libraries_of_blas_are_looked_for_again_only_after_an_import(monkeypatch):
    import sys
    from types import ModuleType

    from localpower.engines import blas

    first = blas._libraries()
    assert blas._libraries() is first
    monkeypatch.setitem(sys.modules, "a_module_that_may_bring_its_own_blas", ModuleType("own"))
    assert blas._libraries() is not first


def threads_of_a_run(rows):
    import threading

    seen = []
    lp.svd(np.eye(rows, 50), 2, callback=lambda *_: seen.extend(threading.enumerate()))
    return [thread for thread in seen if thread.name.startswith("localpower")]


def test_small_rows_start_no_threads():
    assert not threads_of_a_run(1000)
    assert threads_of_a_run(5000)
