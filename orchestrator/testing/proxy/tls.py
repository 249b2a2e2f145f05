"""A certificate authority that lives as long as the double, and the one certificate that it signs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

HOSTS_SIGNED_FOR = (
    "management.azure.com",
    "login.microsoftonline.com",
    "prices.azure.com",
    "*.api.azureml.ms",
    "*.blob.core.windows.net",
)


def server_context(folder: Path, *more_hosts: str) -> tuple[ssl.SSLContext, Path]:
    """What serves TLS for the hosts, and the authority's certificate, which a client has to trust.

    Args:
        folder: holds the certificates; nothing of it is needed once the double is closed.
        more_hosts: besides those that every workspace needs; `*` stands for one label.

    Raises:
        ModuleNotFoundError: the extra `testing` is not installed.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def builder(
        subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority, critical=False)
        )

    root, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = "Azure double"
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and lists
    authority = (
        builder(name, name, root, root)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(root, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in (*HOSTS_SIGNED_FOR, *more_hosts)])
    certificate = (
        builder("azure.double", name, leaf, root)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .sign(root, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    folder.mkdir(parents=True, exist_ok=True)
    trusted, served = folder / "authority.pem", folder / "server.pem"
    trusted.write_bytes(authority.public_bytes(pem))
    form = serialization.PrivateFormat.PKCS8
    key = leaf.private_bytes(pem, form, serialization.NoEncryption())
    served.touch(mode=0o600)
    served.write_bytes(key + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(served)
    return context, trusted
