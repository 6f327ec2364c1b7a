"""The policy of a site: what is read from its file, and what it says in plain words."""

from pathlib import Path

import pytest

from localpower.federation.policy import Policy, Private

SUMS = Policy("n").tasks

WHOLE = """
name = "north"
data = "cohort.parquet"
columns = ["age", 3]
drop = ["id"]
label = "group"
missing = "drop"
header = true
delimiter = ";"
dtype = "float64"
key = "rows"
zero_based = false
n_features = 12
tasks = ["Sums", "Spread", "Prepare", "PowerSteps", "SmallGram"]
secure_sum = "optional"
min_rows = 200
min_sites = 4
max_rounds = 20
max_columns = 400
max_bytes = 1000000
privacy = {epsilon = 1.0, delta = 1e-6, clip = 2.0}
peers = {hospital-b = "sha256:%s"}
coordinator = "127.0.0.1:8443"
keys = "secret"
""" % ("ab" * 32)


def policy(folder, text):
    path = folder / "policy.toml"
    path.write_text(text)
    return Policy.read(path)


def test_every_key_is_read(tmp_path):
    found = policy(tmp_path, WHOLE)
    assert found == Policy(
        name="north",
        data="cohort.parquet",
        columns=("age", 3),
        drop=("id",),
        label="group",
        missing="drop",
        header=True,
        delimiter=";",
        dtype="float64",
        key="rows",
        zero_based=False,
        n_features=12,
        tasks=("Sums", "Spread", "Prepare", "PowerSteps", "SmallGram"),
        secure_sum="optional",
        min_rows=200,
        min_sites=4,
        max_rounds=20,
        max_columns=400,
        max_bytes=1000000,
        privacy=Private(1.0, 1e-6, 2.0),
        peers={"hospital-b": "sha256:" + "ab" * 32},
        coordinator="127.0.0.1:8443",
        keys="secret",
        folder=tmp_path,
    )
    assert found.path == str(tmp_path / "cohort.parquet")
    assert found.options().columns == ("age", 3)
    assert found.options().zero_based is False


def test_a_name_is_enough_and_the_rest_is_careful(tmp_path):
    found = policy(tmp_path, 'name = "north"')
    assert found == Policy("north", folder=tmp_path)
    assert found.secure_sum == "required"
    assert (found.min_rows, found.min_sites) == (100, 3)
    assert "LeftVectors" not in found.tasks
    assert "Describe" not in found.tasks


BAD = {
    "name": '"no spaces"',
    "data": "7",
    "columns": '"age"',
    "drop": "[1.5]",
    "label": "1.5",
    "missing": '"guess"',
    "header": "1",
    "delimiter": "1",
    "dtype": '"int8"',
    "key": "1",
    "zero_based": '"yes"',
    "n_features": "-1",
    "tasks": '["LeftVectors"]',
    "secure_sum": '"maybe"',
    "min_rows": "0",
    "min_sites": "0",
    "max_rounds": "true",
    "max_columns": "1.5",
    "max_bytes": "100",
    "privacy": "{epsilon = 1.0, delta = 1.5, clip = 1.0}",
    "peers": '{south = "ab"}',
    "coordinator": "1",
    "keys": "[]",
}


@pytest.mark.parametrize("key", BAD)
def test_a_value_that_cannot_be_is_named_with_its_key(tmp_path, key):
    text = f"{key} = {BAD[key]}\n" + ('name = "north"' if key != "name" else "")
    with pytest.raises(ValueError, match=rf"policy.toml: {key}\s?=.*: (take|give|list|name)"):
        policy(tmp_path, text)


def test_every_key_has_a_value_that_is_refused():
    assert {*BAD} | {"folder"} == {*Policy.__dataclass_fields__}


def test_privacy_needs_all_three_numbers(tmp_path):
    with pytest.raises(ValueError, match=r"give privacy = {epsilon = 1\.0, delta"):
        policy(tmp_path, 'name = "north"\nprivacy = {epsilon = 1.0}')


def test_a_key_that_is_not_known_is_named(tmp_path):
    with pytest.raises(
        ValueError, match="min_row is not a key of a policy: take some of name, data"
    ):
        policy(tmp_path, 'name = "north"\nmin_row = 5')


def test_a_policy_without_a_name_says_so(tmp_path):
    with pytest.raises(ValueError, match="name is missing: add name"):
        policy(tmp_path, "min_rows = 5")


def test_text_that_is_no_toml_says_where(tmp_path):
    with pytest.raises(ValueError, match=r"policy.toml is not TOML: .*line 1"):
        policy(tmp_path, "name north")
    with pytest.raises(ValueError, match=r"line 2.*; text is in quotes, and a path in it has /"):
        policy(tmp_path, 'name = "north"\ndata = "C:\\Users\\rows.csv"')


def test_a_policy_may_begin_with_a_byte_order_mark_and_must_be_utf_8(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_bytes(b'\xef\xbb\xbfname = "north"')
    assert Policy.read(path).name == "north"
    path.write_bytes(b'name = "n\xfcrnberg"')
    with pytest.raises(ValueError, match=r"policy.toml is not text in UTF-8: save it as such"):
        Policy.read(path)


@pytest.mark.parametrize("entry", ["[]", "{}", "1"])
def test_a_task_that_is_no_word_is_named(tmp_path, entry):
    with pytest.raises(ValueError, match=r"policy.toml: tasks = .*: list some of Sums"):
        policy(tmp_path, f'name = "north"\ntasks = [{entry}]')


def test_plain_words_tell_every_limit():
    told = Policy("north", "a.csv", peers={"south": "sha256:" + "0" * 64}).explain()
    for word in (
        "a.csv",
        "masked",
        "PowerSteps",
        "south",
        "3 sites",
        "100 rows",
        "10 rows for each",
    ):
        assert word in told
    for word in ("100 questions", "1000 columns", "268435456 bytes", "no noise", "never leave"):
        assert word in told


def test_plain_words_tell_what_is_missing_and_what_is_seen():
    told = Policy("north", secure_sum="off", min_sites=1).explain()
    for word in ('add data = "file"', "add peers", "sees this site's own numbers", "two sites see"):
        assert word in told
    assert "half of its rows" in told
    assert "private runs only" in Policy("n", privacy=Private(1, 1e-6, 2)).explain()


def test_plain_words_tell_what_runs_without_masks_ask_for_beside_sums():
    said = "Runs without masks are refused until tasks has Describe and Triangle"
    assert said in Policy("n", secure_sum="optional").explain()
    both = (*SUMS, "Describe", "Triangle")
    assert "are refused until" not in Policy("n", secure_sum="optional", tasks=both).explain()
    assert "are refused until" not in Policy("n").explain()
    private = Policy("n", secure_sum="optional", privacy=Private(1, 1e-6, 2))
    assert "are refused until" not in private.explain()


def test_a_path_of_its_own_is_kept():
    assert Policy("north", "/data/rows.npy", folder=Path("/site")).path == "/data/rows.npy"
