"""What `barnabas pipeline reset` leaves in the sink, in words."""

from barnabas.net.programs.pipeline.spec import DeltaSink, IcebergSink, ParquetSink, PipelineSpec, TableSink, TopicSink

from ..frame.exit_codes import CommandError, ExitCode


def check_empty_sink(spec: PipelineSpec) -> None:
    """Raises CommandError for a sink that --empty-sink does not empty."""
    if isinstance(spec.sink, TableSink):
        return
    match spec.sink:
        case TopicSink():
            cure = f"`barnabas topic delete {spec.sink.topic}` and create it again, or name another topic"
        case DeltaSink() | IcebergSink():
            cure = "remove the table, or name another one"
        case _:
            cure = "remove the option: the next run writes a new folder"
    raise CommandError(f"--empty-sink is for sinks with table = ...: {cure}", ExitCode.USAGE)


def after_reset(spec: PipelineSpec, *, is_emptied: bool) -> str:
    """What happens with the rows that the sink has."""
    sink = spec.sink
    match sink:
        case TableSink() if is_emptied:
            return f"It removes all rows of the table {sink.table} first."
        case TableSink(key=()):
            return f"The rows of the table {sink.table} stay, and are there twice then; --empty-sink removes them."
        case TableSink():
            return (
                f"Rows of the table {sink.table} are replaced by their key. Those that it does not write again stay, such as rows"
                " that the source has deleted meanwhile; --empty-sink removes them."
            )
        case ParquetSink():
            return "It writes a new folder."
        case DeltaSink() | IcebergSink() if spec.output_mode == "complete":
            return "It replaces the rows of the table."
        case _:
            return "Rows that the sink has stay there."
