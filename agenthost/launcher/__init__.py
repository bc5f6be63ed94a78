"""Making the namespaces and mounts of a view or an environment.

The daemon half (`client`) is asyncio; the builder is a single-threaded process of its own; they share `wire` and the
mount steps alone.
"""
