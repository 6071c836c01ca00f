"""What tables of a lake are partitioned by: the rules of a setting, and the rows that they divide."""
