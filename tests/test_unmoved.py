"""Components, singular values and ledgers are those from before methods became objects.

``unmoved.json`` was written by the last version in which options were arguments of `svd`, on the
engine ``inline``. A case has its components as the base64 text of the bytes of their numbers, and
its ledger as pairs: how often a record comes in a row, and its place among all records. Cases with
rounded messages are newer: their replies also tell what rounding took, a number for each column.
Means of more than 64 deviations, as of "unlike shards", are sent with what they round off.
Other machines have other kernels of BLAS, which differ in the last bits; the numbers are those of
the kernels for AVX2. `SENSITIVE` has the rows that turn these bits into more.
"""

import base64
import json
import warnings
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import ENGINES, same_bits
from threadpoolctl import threadpool_info

import localpower as lp

KNOWN = json.loads(Path(__file__).with_name("unmoved.json").read_text(encoding="utf-8"))
DATA = {
    "dense": {"workers": 5},
    "float32": {"workers": 3, "tol": 1e-3},
    "sparse": {"workers": 4, "center": True, "scale": "std"},
    "unlike shards": {"center": True},
    "wide": {"workers": 3},
}
UNCERTIFIED = ("uda", "wda", "aligned_average", "dr_svd", "one_shot")  # these take no tolerance
AS_WRITTEN = {info.get("architecture") for info in threadpool_info()} == {"Haswell"}
ROUNDED = "local_power:steps=4,schedule=adaptive,wire=float32"  # an entry may round the other way
SIGNED = "local_power:steps=4,align=signs,align_at=worker"  # a product near 0 has either sign
SENSITIVE = {f"{name} | {ROUNDED}": 1e-8 for name in DATA} | {f"wide | {SIGNED}": 1e-2}


def rows(name):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((240, 16)) * 0.7 ** np.arange(16)
    if name == "float32":
        return X.astype(np.float32)
    if name == "sparse":
        return sp.csr_array(np.where(rng.random((240, 16)) < 0.4, X, 0.0))
    if name == "unlike shards":
        return [X[:50] * 3, X[50:60], X[60:200], X[200:] + 1]
    if name == "wide":
        return X.T @ rng.standard_normal((240, 60)) * 0.8 ** np.arange(60)
    return X


@pytest.fixture(scope="module")
def engines():
    with ExitStack() as stack:
        yield {name: stack.enter_context(lp.connect(name)) for name in ENGINES}


def account(ledger):
    return [
        [
            r.phase,
            r.task,
            r.messages,
            r.words_up,
            r.words_down,
            r.bytes_up,
            r.bytes_down,
            r.exchange,
        ]
        for r in ledger.records
    ]


def test_the_table_has_every_method_on_all_data():
    cases = [case.split(" | ") for case in KNOWN["cases"]]
    methods = {method for _, method in cases}
    assert len(cases) == len(DATA) * len(methods)
    assert {method.partition(":")[0] for method in methods} <= set(lp.methods.REGISTRY)


@pytest.mark.parametrize("case", KNOWN["cases"])
def test_numbers_and_ledgers_have_not_moved(case, engines):
    data, method = case.split(" | ")
    known = dict(zip(KNOWN["fields"], KNOWN["cases"][case], strict=True))
    options = {"tol": 1e-8, "rng": 3, "max_rounds": 40} | DATA[data]
    if method.partition(":")[0] in UNCERTIFIED:
        options["tol"] = None
    names = ENGINES[:1] if method == "auto" else ENGINES  # which may choose others on others
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lp.ConvergenceWarning)
        every = [lp.svd(rows(data), 3, method, engine=engines[name], **options) for name in names]

    kind, limit = ("<f4", 1e-6) if data == "float32" else ("<f8", 1e-12)
    components = np.frombuffer(base64.b64decode(known["components"]), kind).reshape(3, -1)
    ledger = [KNOWN["records"][place] for count, place in known["ledger"] for _ in range(count)]
    if not AS_WRITTEN:
        limit = max(limit, SENSITIVE.get(case, 0.0))
    for result in every:
        assert (result.run["method"], result.reason) == (known["method"], known["reason"])
        if limit < 1e-2:  # else it stalls elsewhere, too
            assert account(result.ledger) == ledger
        assert result.components.dtype == components.dtype
        np.testing.assert_allclose(result.components, components, rtol=0, atol=limit)
        np.testing.assert_allclose(result.singular_values, known["values"], rtol=limit)
        assert same_bits(result, every[0])
