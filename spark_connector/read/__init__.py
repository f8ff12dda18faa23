"""The batch reader and the stream reader."""
