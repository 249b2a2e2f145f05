"""The version of the package, apart from its public surface: support code must not import that."""

__version__ = "0.1.0"
