"""Commands beside training: copies, exports, looks and a server."""
