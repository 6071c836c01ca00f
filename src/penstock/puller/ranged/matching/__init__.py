"""From the bytes of a change stream to committed rows: scanning messages, matching prewrites with commits. Numeric kernels."""
