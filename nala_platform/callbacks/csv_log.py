"""The metrics file of a run."""

import csv
import io
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from nala_platform.errors import StorageError
from nala_platform.runs import METRICS, write_atomic
from nala_platform.runs.files import writing


class CSVLog(Logger):
    """``metrics.csv``: one row per logged step, one column per metric, a cell empty where nothing was logged.

    What is logged at the same step comes into the same row, so a spreadsheet or `pandas.read_csv` can plot any column
    against ``step``. A metric that is logged twice at one step, as by two validations while the gradients of that step
    accumulate, begins another row of the step. Rows are appended and flushed as soon as the next step begins; a metric
    that turns up later widens the file, which is then rewritten as a whole.

    Args:
        folder: of the run; the file appears with the first row.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / METRICS
        self._columns: list[str] = []
        self._rows: list[dict[str, str]] = []
        self._pending: dict[str, str] = {}

    @property
    def name(self) -> str:
        """Empty: the run folder is the experiment."""
        return ""

    @property
    def version(self) -> str:
        """The run folder's name."""
        return self.path.parent.name

    @property
    def log_dir(self) -> str:
        """The run folder."""
        return str(self.path.parent)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add ``metrics`` to the row of ``step``."""
        row = str(0 if step is None else step)
        if self._pending and not _fits(self._pending, {"step": row, **metrics}):
            self._write_pending()
        self._pending["step"] = row
        epoch = metrics.get("epoch")
        for name, value in metrics.items():
            self._pending[name] = str(int(value)) if name == "epoch" and epoch is not None else repr(float(value))

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: ``config.yaml`` is the one place that holds them."""

    @rank_zero_only
    def save(self) -> None:
        """Write the row that is still open; what is logged at the same step later rewrites it."""
        if self._pending:
            self._write_pending()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the last row."""
        try:
            self.save()
        except StorageError:
            if status == "success":
                raise  # else what ended the run is being told, and this would hide it

    def state(self) -> dict[str, Any]:
        """How far the file has come: what `restore` needs, once the open row is written."""
        self.save()
        return {
            "rows": len(self._rows),
            "columns": list(self._columns),
            "last": dict(self._rows[-1]) if self._rows else {},
        }

    @rank_zero_only
    def restore(self, state: dict[str, Any]) -> None:
        """Take the file back to where ``state`` was taken: later rows and columns go, the last row is as it was."""
        rows: list[dict[str, str]] = []
        if self.path.is_file():
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(file)]
        if len(rows) < state["rows"]:
            print(
                f"nala: warning: {self.path} has {len(rows)} of the {state['rows']} rows that were logged before the "
                "checkpoint: the others are lost",
                file=sys.stderr,
            )
        self._columns = list(state["columns"])
        self._rows = rows[: state["rows"]]
        if self._rows and len(self._rows) == state["rows"]:
            self._rows[-1] = dict(state["last"])
        self._rows = [{name: row[name] for name in self._columns if name in row} for row in self._rows]
        self._pending = {}
        if self._rows:
            self._write_all()
        else:
            self._columns = []
            self.path.unlink(missing_ok=True)

    def _write_pending(self) -> None:
        row, self._pending = self._pending, {}
        merged = bool(self._rows) and _fits(self._rows[-1], row)
        if merged:
            self._rows[-1].update(row)
        else:
            self._rows.append(row)
        known = {*self._columns, *row}
        if len(known) > len(self._columns) or merged:
            # one order whatever came first, so that a resumed run writes the very same file
            first = [name for name in ("step", "epoch") if name in known]
            self._columns = first + sorted(known.difference(first))
            self._write_all()
            return
        with writing(self.path), self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(self._text([row]))

    def _write_all(self) -> None:
        write_atomic(self.path, self._text([dict(zip(self._columns, self._columns, strict=True)), *self._rows]))

    def _text(self, rows: list[dict[str, str]]) -> str:
        buffer = io.StringIO()
        csv.DictWriter(buffer, self._columns, restval="", lineterminator="\n").writerows(rows)
        return buffer.getvalue()


def _fits(row: Mapping[str, Any], more: Mapping[str, Any]) -> bool:
    """Whether ``more`` belongs to the step of ``row`` and overwrites none of its metrics."""
    return row["step"] == more["step"] and row.keys() & more.keys() <= {"step", "epoch"}
