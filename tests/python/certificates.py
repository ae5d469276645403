"""Certificates for tests: an authority, and what it signs."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.timezone.utc)


ROLES = x509.ObjectIdentifier("1.3.6.1.4.1.34601.2.1.1")


def name(common_name, unit=None):
    """A member's certificate has the same unit as the server's; a client's must not."""
    parts = [(NameOID.ORGANIZATION_NAME, "Pando"), (NameOID.COMMON_NAME, common_name)]
    if unit:
        parts.insert(1, (NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def roles_extension(roles):
    """MongoDB's: a set of sequences of two strings."""

    def der(tag, content):
        assert len(content) < 128
        return bytes([tag, len(content)]) + content

    pairs = [der(0x30, der(0x0C, role.encode()) + der(0x0C, db.encode())) for role, db in roles]
    return x509.UnrecognizedExtension(ROLES, der(0x31, b"".join(pairs)))


class Authority:
    """Writes PEM files into `folder`. Each file with a key is its owner's alone."""

    def __init__(self, folder, common_name="authority"):
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = name(common_name)
        self.certificate = self.build(self.name, self.key.public_key(), True, 3650)
        self.file = folder / f"{common_name}.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def build(self, subject, public_key, is_authority, days, more=()):
        begin = NOW - datetime.timedelta(days=10)
        builder = x509.CertificateBuilder(
            issuer_name=self.name,
            subject_name=subject,
            public_key=public_key,
            serial_number=x509.random_serial_number(),
            not_valid_before=begin,
            not_valid_after=NOW + datetime.timedelta(days=days),
        ).add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        if not is_authority:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, common_name, days=300, unit=None, roles=(), password=None, file=None, rsa_bits=None):
        """A file with a certificate and its key; with a password the key is encrypted."""
        key = rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
        more = [roles_extension(roles)] if roles else []
        certificate = self.build(name(common_name, unit), key.public_key(), False, days, more)
        path = self.folder / f"{file or common_name}.pem"
        how = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        path.write_bytes(
            pem
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how
            )
        )
        path.chmod(0o600)
        return path

    def revoke(self, *paths):
        """A revocation list of these certificates."""
        builder = x509.CertificateRevocationListBuilder(issuer_name=self.name, last_update=NOW, next_update=NOW + datetime.timedelta(days=9))
        for path in paths:
            serial = x509.load_pem_x509_certificate(path.read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder(serial_number=serial, revocation_date=NOW).build()
            builder = builder.add_revoked_certificate(revoked)
        builder = builder.add_extension(x509.CRLNumber(1), critical=False)
        path = self.folder / "revoked.pem"
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path
