"""Trinity-RFT's own side: its configuration, algorithms, workflows, pipelines and selectors."""
