"""A certificate authority that lives as long as the double, and the one certificate that it signs."""

from __future__ import annotations

import ssl
from pathlib import Path

HOSTS_SIGNED_FOR = (
    "management.azure.com",
    "login.microsoftonline.com",
    "prices.azure.com",
    "*.api.azureml.ms",
    "*.blob.core.windows.net",
)


def server_context(folder: Path, *more_hosts: str) -> tuple[ssl.SSLContext, Path]:
    """Return what serves TLS for the hosts, and the file of the authority's certificate, which a client has to trust.

    Args:
        folder: holds the authority's certificate; not needed any more once the double is closed.
        more_hosts: besides those that every workspace needs; `*` stands for one label.

    Raises:
        ModuleNotFoundError: the extra `testing` is not installed.
    """
    import trustme

    authority = trustme.CA(organization_name="Azure double")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*HOSTS_SIGNED_FOR, *more_hosts).configure_cert(context)
    folder.mkdir(parents=True, exist_ok=True)
    trusted = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    return context, trusted
