"""Everything that imports pyspark: the window's job, planner, barrier, bootstraps, formats."""
