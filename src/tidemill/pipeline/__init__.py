"""The Spark data source and the jobs on top of it."""
