"""The types of the compiled twin are those of `pure`."""

from .pure import INTERFACE as INTERFACE
from .pure import Accumulator as Accumulator
from .pure import ColumnBuilder as ColumnBuilder
from .pure import Intake as Intake
from .pure import PassTime as PassTime
from .pure import Ready as Ready
from .pure import Receipt as Receipt
from .pure import RecordView as RecordView
from .pure import largest as largest
from .pure import murmur2_column as murmur2_column
from .pure import read_lists as read_lists
from .pure import read_records as read_records
from .pure import read_spans as read_spans
from .pure import rows_by_partition as rows_by_partition
