"""One module an API: its fields, types and version ranges."""
