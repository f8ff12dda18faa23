"""The SDK: producer, consumer and admin clients. Users import them from `barnabas`, which loads each when it is first
named."""

__all__: list[str] = []
