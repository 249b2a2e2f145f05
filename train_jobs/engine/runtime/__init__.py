"""The process and its ranks: devices, precision, storage, and how it ends."""
