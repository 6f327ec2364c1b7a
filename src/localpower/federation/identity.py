"""Who is who in a federation: keys, certificates, pins, and the files that hold them.

One call makes everything: a certificate authority, a server certificate for the coordinator, and
for each site a client certificate and an identity key that signs its part of a roster. A site's
folder holds its own secrets and nobody else's, and paths in it are relative: it can be moved.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localpower.core.errors import LocalPowerError
from localpower.federation.masks import IDENTITY, SiteKeys, fingerprint
from localpower.federation.messages import PIN, SECURE
from localpower.federation.templates import FEDERATION, POLICY, SITE

DAYS = 730  # that certificates are valid
LEAST_SITES = 3  # of a run: two see each other's part
EARLY = timedelta(hours=1)  # clocks of sites may be late
FILE, POLICY_FILE, COORDINATOR = "federation.toml", "policy.toml", "coordinator"
TLS_KEY, TLS_CERTIFICATE = "tls.key", "tls.pem"
SERVER_KEY, SERVER_CERTIFICATE, CA_CERTIFICATE = "coordinator.key", "coordinator.pem", "ca.pem"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class CredentialError(LocalPowerError, ValueError):
    """Keys, certificates or names that do not fit; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A key with the certificate of its public part."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        """The certificate as text."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def secret(self) -> bytes:
        """The key as text, not encrypted: the file's permissions protect it."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass(frozen=True, slots=True)
class Member:
    """A site of the roster: pins of its certificate's public key and of its identity key."""

    certificate: str
    identity: str


@dataclass(frozen=True, slots=True)
class FederationFile:
    """The coordinator's file: where it listens, who may connect, and how long it waits for them."""

    path: Path
    host: str
    port: int
    listen: str
    secure_sum: str
    wait: float
    answer: float
    sites: Mapping[str, Member]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> FederationFile:
        """Read ``federation.toml``; what is wrong with it is named."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        found = read_toml(path, "`localpower federation init FOLDER --site NAME ...` makes one")
        number = int | float
        known: dict[str, Any] = {"host": str, "port": int, "listen": str, "secure_sum": str,
                                 "wait": number, "answer": number, "sites": dict}  # fmt: skip
        for name, value in found.items():
            if name not in known:
                raise ValueError(f"{path}: {name!r} is not known; take some of {', '.join(known)}")
            if not isinstance(value, known[name]) or isinstance(value, bool):
                raise ValueError(f"{path}: {name} = {value!r} is of the wrong kind")
        missing = [name for name in ("host", "port", "sites") if name not in found]
        if missing:
            raise ValueError(f"{path}: {', '.join(missing)} is missing; write it as init does")
        secure = found.get("secure_sum", SECURE[0])
        if secure not in SECURE:
            raise ValueError(f"{path}: secure_sum = {secure!r} must be one of {', '.join(SECURE)}")
        sites = {name: _member(path, name, entry) for name, entry in found["sites"].items()}
        if not sites:
            raise ValueError(f"{path}: there are no sites; add [sites.NAME] with its pins")
        times = {name: float(found.get(name, usual)) for name, usual in TIMES.items()}
        for name, seconds in times.items():
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{path}: {name} = {seconds} must be seconds, above 0")
        host, port = found["host"], found["port"]
        if not 0 < port < 65536:
            raise ValueError(f"{path}: port = {port} must be between 1 and 65535")
        return cls(path, host, port, found.get("listen", host), secure, **times, sites=sites)

    @property
    def address(self) -> str:
        """Where it listens, as gRPC writes it."""
        return joined(self.listen, self.port)


TIMES = {"wait": 120.0, "answer": 3600.0}  # seconds


def _member(path: Path, name: str, entry: Any) -> Member:
    pins = ("certificate", "identity")
    if not isinstance(entry, dict) or sorted(entry) != sorted(pins):
        raise ValueError(f"{path}: [sites.{name}] needs {' and '.join(pins)}, and nothing else")
    for pin in pins:
        if not PIN.fullmatch(str(entry[pin])):
            raise ValueError(
                f"{path}: {pin} = {entry[pin]!r} of {name} is not a pin; write sha256:... "
                "with 64 digits, as in the file that init made"
            )
    return Member(entry["certificate"], entry["identity"])


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    """Read a TOML file; what to do where there is none, or it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} is not there: {remedy}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8: save it as such") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{path} is not TOML: {error}; text is in quotes, and a path in it has / and no \\"
        ) from None


def read_key(path: Path, remedy: str) -> bytes:
    """Read a file of keys; what to do where there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CredentialError(f"{path} is missing: {remedy}") from None


def read_certificate(path: Path, remedy: str) -> tuple[bytes, x509.Certificate]:
    """Read a certificate that is valid now, also as it is; what to do where there is none."""
    text = read_key(path, remedy)
    try:
        found = x509.load_pem_x509_certificate(text)
    except ValueError:
        raise CredentialError(f"{path} holds no certificate: {remedy}") from None
    check_valid(found, f"{path}")
    return text, found


def read_pair(
    folder: Path, key: str, certificate: str, remedy: str
) -> tuple[bytes, bytes, x509.Certificate]:
    """Read a key and its certificate. TLS would say of others only that nobody answers."""
    secret = read_key(folder / key, remedy)
    text, found = read_certificate(folder / certificate, remedy)
    try:
        public = load_pem_private_key(secret, password=None).public_key()
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise CredentialError(
            f"{folder / key} holds no key that can be read without a password: {remedy}"
        ) from None
    if public != found.public_key():
        raise CredentialError(
            f"{folder / key} is not the key of the certificate in {certificate}: {remedy}"
        )
    return secret, text, found


def joined(host: str, port: int) -> str:
    """An address with its port; IPv6 has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def certificate_pin(certificate: x509.Certificate) -> str:
    """The pin of a certificate's public key; a new certificate of the same key has the same."""
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return fingerprint(certificate.public_key().public_bytes(*form))


def name_of(certificate: x509.Certificate) -> str:
    """The one name that a site's certificate is for."""
    with suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = [str(name.value) for name in names if isinstance(name, x509.DNSName)]
        if len(found) == 1:
            return found[0]
    raise CredentialError("a site's certificate must have exactly one name")


def check_valid(certificate: x509.Certificate, whose: str) -> None:
    """Refuse a certificate that is not valid now."""
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise CredentialError(
            f"{whose} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: ask the coordinator "
            "for a new folder of `localpower federation init`"
        )
    if now < certificate.not_valid_before_utc:
        raise CredentialError(
            f"{whose} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on, and "
            f"the clock here says {now:%Y-%m-%d %H:%M}: set the clock"
        )


def authority() -> Credential:
    """Make a certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localpower federation")])
    builder = _builder(subject, subject, key, DAYS)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), True)
    builder = builder.add_extension(_usage(signs=True), True)
    return Credential(key, builder.sign(key, hashes.SHA256()))


def issue(ca: Credential, name: str, host: str = "", days: float = DAYS) -> Credential:
    """Make a key, and have its certificate signed: of a site, or of a server at `host`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, ca.certificate.subject, key, days)
    use = ExtendedKeyUsageOID.SERVER_AUTH if host else ExtendedKeyUsageOID.CLIENT_AUTH
    for extension, critical in (
        (x509.BasicConstraints(False, None), True),
        (_usage(signs=False), True),
        (x509.ExtendedKeyUsage([use]), False),
        (x509.SubjectAlternativeName([_general(host or name)]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    return Credential(key, builder.sign(ca.key, hashes.SHA256()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=min(now, end) - EARLY,
        not_valid_after=end,
    ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False)


def _general(name: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ip_address(name))
    return x509.DNSName(name)


def make_federation(
    folder: str | os.PathLike[str], sites: Sequence[str], host: str = "127.0.0.1", port: int = 8443
) -> Path:
    """Make keys, certificates and files of a federation in a folder; return the coordinator's file.

    Policies ask for all sites in every run: a coordinator that can leave one out reads its part.
    Nothing is written over: where one of the files is there, none is written.
    """
    _check(sites, host, port)
    folder = Path(folder)
    ca = authority()
    server = issue(ca, COORDINATOR, host)
    tls = {name: issue(ca, name) for name in sites}
    identities = {name: SiteKeys.generate() for name in sites}
    pins = {name: keys.fingerprint for name, keys in identities.items()}
    rows = [SITE.format(name=name, identity=pins[name],
                        certificate=certificate_pin(tls[name].certificate))
            for name in sites]  # fmt: skip
    about = {"host": host, "port": port, "until": f"{server.certificate.not_valid_after_utc:%F}"}
    contents: dict[Path, bytes] = {
        folder / FILE: FEDERATION.format(sites="\n".join(rows), **about).encode(),
        folder / "ca.key": ca.secret,
        folder / CA_CERTIFICATE: ca.pem,
        folder / SERVER_KEY: server.secret,
        folder / SERVER_CERTIFICATE: server.pem,
    }
    for name in sites:
        keys = folder / name / "keys"
        peers = "\n".join(f'{peer} = "{pins[peer]}"' for peer in sites if peer != name)
        least = max(len(sites), LEAST_SITES)
        text = POLICY.format(name=name, coordinator=joined(host, port), peers=peers, least=least)
        contents |= {
            folder / name / POLICY_FILE: text.encode(),
            keys / TLS_KEY: tls[name].secret,
            keys / TLS_CERTIFICATE: tls[name].pem,
            keys / IDENTITY: identities[name].pem,
            keys / SERVER_CERTIFICATE: server.pem,
        }
    _write(contents)
    return folder / FILE


def _check(sites: Sequence[str], host: str, port: int) -> None:
    for name in sites:
        if not NAME.fullmatch(name) or name == COORDINATOR:
            raise ValueError(
                f"--site {name}: take small letters, digits and hyphens, and not {COORDINATOR!r}"
            )
        if sites.count(name) > 1:
            raise ValueError(f"--site {name} is given twice; every site has a name of its own")
    if len(sites) < 2:
        raise ValueError("give at least two sites, as --site north --site south; three hide more")
    if not 0 < port < 65536:
        raise ValueError(f"--port {port} must be between 1 and 65535")
    if not re.fullmatch(r"[A-Za-z0-9.:-]+", host) or host in ("0.0.0.0", "::"):  # noqa: S104
        raise ValueError(f"--host {host} must be the name or address that the sites connect to")


def _write(contents: Mapping[Path, bytes]) -> None:
    """Write all files, readable by the owner alone; or none of them."""
    there = [path for path in contents if path.exists()]
    if there:
        raise FileExistsError(
            f"{there[0]} is there already, and is not written over; give another folder, or move "
            "the old one away"
        )
    done: list[Path] = []
    try:
        for path, content in contents.items():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            done.append(path)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(content)
    except BaseException:
        for path in done:
            path.unlink(missing_ok=True)
        raise
