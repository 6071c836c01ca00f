"""Everything that imports pyspark: source, writer, window planner, barrier."""
