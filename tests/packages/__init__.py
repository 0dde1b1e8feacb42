"""What is released: metadata, versions, files."""
