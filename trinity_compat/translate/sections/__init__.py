"""The derived part of the mapping: one module per section of the Trinity configuration."""
