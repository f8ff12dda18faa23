"""`barnabas doctor --bundle`: one archive for a maintainer, without record contents and secrets."""
