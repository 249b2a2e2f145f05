"""The control plane: `management.azure.com`."""
