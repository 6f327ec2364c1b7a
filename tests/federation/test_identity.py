"""Keys, certificates and files of a new federation."""

import shutil
import stat
import tomllib
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID
from real_sites import free_port

from localpower.federation import identity
from localpower.federation.identity import (
    CredentialError,
    FederationFile,
    authority,
    certificate_pin,
    check_valid,
    issue,
    make_federation,
    name_of,
)
from localpower.federation.join import credentials_of
from localpower.federation.masks import SiteKeys
from localpower.federation.policy import Policy

NAMES = ["north", "south", "west"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "federation"
    make_federation(folder, NAMES, port=8443)
    return folder


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_all_files_are_readable_by_their_owner_alone(folder):
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_a_site_has_its_own_secrets_and_nobody_elses(folder):
    def secrets(part):
        return {path.read_bytes() for path in files(part) if b"PRIVATE KEY" in path.read_bytes()}

    own = {name: secrets(folder / name) for name in NAMES}
    assert [len(found) for found in own.values()] == [2, 2, 2]
    assert len(set.union(*own.values())) == 6
    assert len(secrets(folder)) == 8  # and those of the authority and the coordinator


def test_a_folder_of_a_site_can_be_moved(folder, tmp_path):
    moved = (folder / "north").rename(tmp_path / "elsewhere")
    try:
        assert str(folder) not in (moved / "policy.toml").read_text()
        policy = Policy.read(moved / "policy.toml")
        credentials_of(policy.name, policy.folder / policy.keys)
        SiteKeys.read(policy.folder / policy.keys)
    finally:
        moved.rename(folder / "north")


def test_pins_are_those_of_the_keys(folder):
    file = FederationFile.read(folder / "federation.toml")
    assert (file.address, list(file.sites), file.secure_sum) == ("127.0.0.1:8443", NAMES, "strict")
    policies = {name: Policy.read(folder / name / "policy.toml") for name in NAMES}
    for name in NAMES:
        keys = folder / name / "keys"
        assert file.sites[name].certificate == certificate_pin(certificate(keys / "tls.pem"))
        own = SiteKeys.read(keys).fingerprint
        assert file.sites[name].identity == own
        others = {other: policy.peers.get(name) for other, policy in policies.items()}
        assert others == {other: None if other == name else own for other in NAMES}


def test_certificates_are_for_one_purpose_and_signed_by_the_authority(folder):
    ca = certificate(folder / "ca.pem")
    limits = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)  # it signs, and nobody whom it has signed
    uses = {"coordinator": ExtendedKeyUsageOID.SERVER_AUTH}
    paths = {name: folder / name / "keys" / "tls.pem" for name in NAMES}
    for name, path in ({"coordinator": folder / "coordinator.pem"} | paths).items():
        found = certificate(path)
        found.verify_directly_issued_by(ca)
        extended = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(extended) == [uses.get(name, ExtendedKeyUsageOID.CLIENT_AUTH)]
        assert isinstance(found.public_key().curve, ec.SECP256R1)
        assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        key = path.with_suffix(".key")
        own = load_pem_private_key(key.read_bytes(), None).public_key()
        assert own == found.public_key()
    assert [name_of(certificate(path)) for path in paths.values()] == NAMES


def test_a_new_policy_says_what_is_the_default_and_explains_every_line(folder):
    path = folder / "north" / "policy.toml"
    text, found = path.read_text(), Policy.read(path)
    usual = Policy(name="north")
    given = {"coordinator", "peers", "folder"}
    for entry in fields(Policy):
        if entry.name not in given:
            assert getattr(found, entry.name) == getattr(usual, entry.name), entry.name
    assert found.coordinator == "127.0.0.1:8443"
    above = ""
    for line in text.splitlines():
        if "=" in line and not line.startswith("#") and "sha256:" not in line:
            assert "  # " in line or above.startswith("#"), line
        above = line
    optional = [line[2:].partition("  #")[0] for line in text.splitlines() if " = " in line
                and line.startswith("# ")]  # fmt: skip
    for line in optional:  # what is suggested can be written so
        Policy(**{"name": "north"} | _parsed(line))


def _parsed(line):
    from localpower.federation.policy import Private

    found = tomllib.loads(line)
    found = {key: tuple(v) if isinstance(v, list) else v for key, v in found.items()}
    return found | ({"privacy": Private(**found["privacy"])} if "privacy" in found else {})


def test_nothing_is_written_over_and_nothing_is_half_written(folder, tmp_path):
    before = {path: path.read_bytes() for path in files(folder)}
    with pytest.raises(FileExistsError, match=r"federation\.toml is there already"):
        make_federation(folder, ["other", "another"])
    assert {path: path.read_bytes() for path in files(folder)} == before
    (tmp_path / "west").mkdir()
    (tmp_path / "west" / "policy.toml").write_text("mine")
    with pytest.raises(FileExistsError):
        make_federation(tmp_path, NAMES)
    assert files(tmp_path) == [tmp_path / "west" / "policy.toml"]
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "south").write_text("a file where a folder is to be")
    with pytest.raises(OSError, match="south"):
        make_federation(tmp_path / "here", NAMES)
    assert files(tmp_path / "here") == [tmp_path / "here" / "south"]


@pytest.mark.parametrize(
    ("sites", "how", "said"),
    [
        (["North", "south"], {}, "--site North"),
        (["a/b", "south"], {}, "--site a/b"),
        (["coordinator", "south"], {}, "--site coordinator"),
        (["north", "north"], {}, "twice"),
        (["north"], {}, "at least two sites"),
        (NAMES, {"port": 0}, "--port 0"),
        (NAMES, {"host": "0.0.0.0"}, "--host 0.0.0.0"),
        (NAMES, {"host": "a b"}, "--host a b"),
    ],
)
def test_names_and_addresses_that_cannot_be_are_refused(tmp_path, sites, how, said):
    with pytest.raises(ValueError, match=said):
        make_federation(tmp_path / "federation", sites, **how)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("port = 8443", "prot = 8443", "'prot' is not known"),
        ("port = 8443", 'port = "8443"', "port = '8443' is of the wrong kind"),
        ("port = 8443", "port = true", "port = True is of the wrong kind"),
        ("port = 8443", "port = 80000", "between 1 and 65535"),
        ("port = 8443", "", "port is missing"),
        ("port = 8443", "port = ", "is not TOML"),
        ("wait = 120", "wait = -1", "wait = -1.0 must be seconds"),
        ("wait = 120", "wait = 0", "wait = 0.0 must be seconds"),
        ("wait = 120", "wait = inf", "wait = inf must be seconds"),
        ('secure_sum = "strict"', 'secure_sum = "yes"', "must be one of strict, recovery, off"),
        ("identity = ", "identity = 'x' # ", "identity = 'x' of north is not a pin"),
        ("identity = ", "# ", "needs certificate and identity"),
        ("identity = ", "other = 1\nidentity = ", "and nothing else"),
    ],
)
def test_each_mistake_in_the_coordinators_file_is_named(folder, tmp_path, old, new, said):
    text = (folder / "federation.toml").read_text()
    assert old in text
    (tmp_path / "federation.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=said):
        FederationFile.read(tmp_path)


def test_a_coordinators_file_without_sites_is_refused(folder, tmp_path):
    text = (folder / "federation.toml").read_text().partition("[sites.")[0]
    (tmp_path / "federation.toml").write_text(f"{text}\n[sites]\n")
    with pytest.raises(ValueError, match=r"there are no sites; add \[sites\.NAME\]"):
        FederationFile.read(tmp_path)


@pytest.mark.parametrize(("count", "least"), [(2, 3), (3, 3), (5, 5)])
def test_policies_ask_for_all_sites_and_for_three_at_least(tmp_path, count, least):
    names = [f"site-{number}" for number in range(count)]
    make_federation(tmp_path, names)
    found = {Policy.read(tmp_path / name / "policy.toml").min_sites for name in names}
    assert found == {least}


def test_a_site_uses_its_own_keys_and_none_that_expired(folder, tmp_path):
    """So much is told before anything is sent; `test_credentials` has the rest."""
    with pytest.raises(CredentialError, match=r"name = 'south' in the policy.* is of 'north'"):
        credentials_of("south", folder / "north" / "keys")
    for name in ("tls", "coordinator"):
        keys = tmp_path / name
        shutil.copytree(folder / "north" / "keys", keys)
        old = issue(authority(), "north", "127.0.0.1" * (name == "coordinator"), days=-1)
        (keys / f"{name}.pem").write_bytes(old.pem)
        with pytest.raises(CredentialError, match=rf"{name}\.pem expired on"):
            credentials_of("north", keys)


def test_a_coordinator_does_not_listen_with_a_certificate_that_expired(tmp_path):
    from localpower.federation.grpc_link import GrpcLink

    file = make_federation(tmp_path, NAMES, port=free_port())
    old = issue(authority(), "coordinator", "127.0.0.1", days=-1)
    (tmp_path / "coordinator.pem").write_bytes(old.pem)
    with pytest.raises(CredentialError, match=r"coordinator\.pem expired on"):
        GrpcLink(FederationFile.read(file))


def locked(path):
    key = load_pem_private_key(path.read_bytes(), password=None)
    return key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a passphrase")
    )


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tls.key", b"no key", "holds no key that can be read without a password: .* take the"),
        ("tls.key", locked, "holds no key that can be read without a password"),
        ("tls.key", "south", r"is not the key of the certificate in tls\.pem: .* take the whole"),
        ("tls.pem", b"", r"north.keys.tls\.pem holds no certificate: .* take the whole folder"),
        ("coordinator.pem", b"no", r"coordinator\.pem holds no certificate: .* take the whole"),
    ],
)
def test_keys_that_cannot_connect_are_named_before_anything_is_waited_for(
    folder, tmp_path, file, content, said
):
    """TLS would tell the site that nobody listens, for ever."""
    keys = shutil.copytree(folder / "north" / "keys", tmp_path / "north" / "keys")
    if content == "south":
        content = (folder / "south" / "keys" / file).read_bytes()
    (keys / file).write_bytes(content(keys / file) if callable(content) else content)
    with pytest.raises(CredentialError, match=said):
        credentials_of("north", keys)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("coordinator.key", "holds no key that can be read without a password: it belongs beside"),
        ("coordinator.pem", "holds no certificate: it belongs beside"),
        ("ca.pem", "holds no certificate: it belongs beside"),
    ],
)
def test_a_coordinator_names_the_key_that_is_damaged(tmp_path, file, said):
    from localpower.federation.grpc_link import GrpcLink

    made = make_federation(tmp_path, NAMES, port=free_port())
    (tmp_path / file).write_bytes(b"-----BEGIN")
    with pytest.raises(CredentialError, match=f"{file} {said}"):
        GrpcLink(FederationFile.read(made))


def test_a_file_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="localpower federation init FOLDER"):
        FederationFile.read(tmp_path / "nothing.toml")


def test_certificates_are_checked_against_the_clock(monkeypatch):
    ca = authority()
    with monkeypatch.context() as late:
        late.setattr(identity, "EARLY", timedelta(days=-1))
        with pytest.raises(CredentialError, match=r"it is valid from .* set the clock"):
            check_valid(issue(ca, "north").certificate, "it")
    check_valid(issue(ca, "north").certificate, "it")
    with pytest.raises(CredentialError, match="it expired on"):
        check_valid(issue(ca, "north", days=-0.5).certificate, "it")
    own = issue(ca, "north").certificate
    assert timedelta(days=729) < own.not_valid_after_utc - datetime.now(UTC) < timedelta(days=731)


def test_a_name_is_the_only_one_of_a_certificate(folder):
    with pytest.raises(CredentialError, match="exactly one name"):
        name_of(certificate(folder / "ca.pem"))
    with pytest.raises(CredentialError, match="exactly one name"):
        name_of(certificate(folder / "coordinator.pem"))  # it is for an address
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([])
    names = x509.SubjectAlternativeName([x509.DNSName("north"), x509.DNSName("south")])
    both = identity._builder(who, who, key, 1).add_extension(names, False)
    with pytest.raises(CredentialError, match="exactly one name"):
        name_of(both.sign(key, hashes.SHA256()))


def test_a_server_may_have_a_name_or_an_address():
    for host, kind in (("127.0.0.1", x509.IPAddress), ("::1", x509.IPAddress),
                       ("fed.example.org", x509.DNSName)):  # fmt: skip
        found = issue(authority(), "coordinator", host).certificate
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(each.value) for each in names] == [host]
        assert isinstance(names[0], kind)
