"""A certificate authority, a server's certificate and keys of nodes, made new for each test."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Credentials:
    """Files in a folder: ca.pem, server.pem, server.key and a pair node-<i>, node-<i>.pub for each
    node.
    """

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    def node(self, i: int) -> Path:
        return self.folder / f"node-{i}"


def make_credentials(folder: Path, nodes: int) -> Credentials:
    """A certificate for 127.0.0.1, valid for a day, and NIST P-384 keys in OpenSSH's format."""
    folder.mkdir(parents=True)
    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    _write(folder / "ca.pem", _certificate(name, name, authority, authority, is_authority=True))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    _write(
        folder / "server.pem", _certificate(subject, name, server, authority, is_authority=False)
    )
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    openssh = serialization.Encoding.OpenSSH
    _write(
        folder / "server.key", server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )
    for i in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        _write(
            folder / f"node-{i}", key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain)
        )
        public = key.public_key().public_bytes(openssh, serialization.PublicFormat.OpenSSH)
        _write(folder / f"node-{i}.pub", public)
    return Credentials(folder)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    is_authority: bool,
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return built.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
