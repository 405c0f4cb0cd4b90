"""GLUE: tasks, metrics, the fine-tuning protocol."""
