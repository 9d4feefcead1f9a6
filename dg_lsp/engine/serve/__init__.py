"""Serve requests: one process per model and user, one queue, one worker thread.

In: messages of `wire` on a Unix socket, or HTTP on a port. Out: events of `wire`, in the order of the work. The model is a
`Filler` (`engine.common.task`), whose steps the worker runs one at a time. Knows nothing of tokens or tensors.
"""
