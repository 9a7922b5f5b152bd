"""A run's folder and database: what lies where, who may write there, and what they tell of the run."""
