"""The decisions of the active controller: a request becomes metadata records and an answer."""
