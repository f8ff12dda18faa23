"""The Spark driver of `barnabas pipeline`: a process that turns a `PipelineSpec` into queries, and reports their progress."""
