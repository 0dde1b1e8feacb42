"""Training statistics to files (CSV, TensorBoard, Parquet) and files to other files."""

__version__ = "0.1.0"
