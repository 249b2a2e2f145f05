"""Calls to Azure: sign-in, control plane, blobs, errors."""
