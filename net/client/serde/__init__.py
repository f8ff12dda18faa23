"""Keys and values as objects: serializers and deserializers of the SDK, with or without a schema registry."""
