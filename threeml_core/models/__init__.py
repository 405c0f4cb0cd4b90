"""The three models: vanilla, 3ML_self, 3ML_cross, on an untouched Hugging Face encoder."""
