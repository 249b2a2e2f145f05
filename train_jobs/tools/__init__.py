"""Command-line tools: metrics mirror, ONNX export, preflight, store inspection, server."""
