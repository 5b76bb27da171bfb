"""The main job on real data: ``python -m tidemill.pipeline.demo``, which is ``make run``."""
