"""Passes over the typed body, one file a pass; ``numfuse/pipeline.py`` lists their order."""
