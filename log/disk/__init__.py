"""The only package that accesses the file system."""
