"""Benchmarks of the HTTP server."""
