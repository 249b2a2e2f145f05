"""Commands for use around training: metrics mirror, ONNX export, preflight, store inspection, server."""
