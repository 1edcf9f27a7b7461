"""A certificate authority of our own: for servers and clients in tests."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_HOSTS = (x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost"))


class Authority:
    """`cert` is its certificate; `issue` makes others, signed by it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.cert = directory / f"{name}.pem"
        self.key = directory / f"{name}.key"
        self._private = _new_key(self.key)
        self._subject = _name(name)
        # Python 3.13 and later require the key usage.
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = _builder(self._subject, self._subject, self._private, days=2)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._sign(builder.add_extension(usage, critical=True), self.cert)

    def issue(self, name: str, *, organization: str = "", days: int = 2, host: str = "") -> tuple[Path, Path]:
        """
        Return the files of a certificate and of its key.

        Args:
            name: of the files, and the common name of the subject.
            organization: the only name of the subject instead.
            days: how long it is valid. If negative, it has expired.
            host: the DNS name for which it is valid, instead of this machine's.
        """
        cert, key = (self.directory / f"{self.name}-{name}.{end}" for end in ("pem", "key"))
        subject = _name(organization, NameOID.ORGANIZATION_NAME) if organization else _name(name)
        builder = _builder(subject, self._subject, _new_key(key), days=days)
        hosts = x509.SubjectAlternativeName([x509.DNSName(host)] if host else _HOSTS)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._private.public_key())
        self._sign(builder.add_extension(hosts, critical=False).add_extension(authority, critical=False), cert)
        return cert, key

    def _sign(self, builder: x509.CertificateBuilder, path: Path) -> None:
        signed = builder.sign(self._private, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def _name(text: str, attribute: x509.ObjectIdentifier = NameOID.COMMON_NAME) -> x509.Name:
    return x509.Name([x509.NameAttribute(attribute, text)])


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a new key, also written to *path*."""
    key = ec.generate_private_key(ec.SECP256R1())
    encoding, format_ = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(encoding, format_, serialization.NoEncryption()))
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int
) -> x509.CertificateBuilder:
    """Return a certificate without a signature that is valid until *days* from now; it became valid three days ago."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=3))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def install(source: tuple[Path, Path], target: tuple[Path, Path]) -> None:
    """Put a certificate and its key in place of others, one file after the other."""
    for new, old in zip(source, target, strict=True):
        beside = old.with_suffix(".new")
        beside.write_bytes(new.read_bytes())
        beside.rename(old)
