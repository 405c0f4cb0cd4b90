"""The paper's tables and figures as experiments, their runs and the claims."""
