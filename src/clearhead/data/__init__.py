"""Text for audits: the default passages and the reader of text files."""
