"""The web console: its pages, and what they need beyond the API of programs."""
