"""Record batch v2 as bytes: headers, records, codecs. Pure: bytes in, values out."""
