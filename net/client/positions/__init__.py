"""Where a consumer reads next, and what it has done."""
