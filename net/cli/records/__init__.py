"""How commands write and read records: format strings, JSON lines, files of tables; positions in words."""
