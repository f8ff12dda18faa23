"""The HTTP admin API (aiohttp routes; they hold no logic of their own)."""
