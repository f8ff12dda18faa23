"""Who may do what: decisions on permissions, and the table of what each API needs. It is asked before a handler is."""
