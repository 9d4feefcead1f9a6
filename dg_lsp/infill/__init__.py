"""From a document and its holes to edits: the one path that the server and the batch command share."""
