"""``trinity-compat studio``: a local web application over a folder of jobs.

Reads what runs write (their databases read-only, in short transactions) and never stands in their way: a
studio that dies or hangs leaves every run as it was. No torch, ray, verl or vllm in this process.
"""
