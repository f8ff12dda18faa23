"""The SDK: producer, consumer and admin clients. Users import them from `barnabas`, which loads each on first
use."""

__all__: list[str] = []
