"""NaLa: norm-aware linear attention, on one platform."""
