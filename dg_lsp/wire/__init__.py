"""What the processes share: the messages they exchange, and the files by which they find each other.

Both sides of the wire import this package; it imports neither, and knows nothing of models or editors. `stream` is how they
talk.
"""
